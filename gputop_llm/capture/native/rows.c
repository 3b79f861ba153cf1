#include "system.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rows.h"

enum {
    BATCH_BYTES = 256 << 10,
    /* A table is at most half full; with more kernels than that, the rest stay without a name (id 0). */
    NAMES_MOST = 1 << 14,
    TABLE = 2 * NAMES_MOST,
    PAGE = 4096,
    CALLBACKS_MOST = 1 << 12,
    LEAST_RECORD = 8,
};

enum { KERNELS, COPIES, MEMSETS, CALLS, BATCHES };

/* The header stands right before the rows, so that a batch is one write. */
struct batch {
    struct wire_header header;
    uint8_t rows[BATCH_BYTES];
};

struct named {
    uint64_t key; /* 0: unused */
    uint32_t id;
};

struct workspace {
    struct batch batches[BATCHES];
    struct named by_pointer[TABLE], by_content[TABLE];
    uint32_t pointers, names;
    char name[TEXT_BYTES_MOST + 1];
    bool callback_sent[2][CALLBACKS_MOST];
};

static const struct cupti *cupti;
static struct channel *channel;
static uint64_t max_bytes;
static struct rows_totals totals;
static struct workspace *work;
static int own_memory; /* /proc/self/mem; -1: names stay unknown */

static const enum wire_chunk chunk_of[BATCHES] = {CHUNK_KERNELS, CHUNK_COPIES, CHUNK_MEMSETS, CHUNK_CALLS};

bool rows_open(const struct cupti *the_cupti, struct channel *the_channel, uint64_t most)
{
    cupti = the_cupti;
    channel = the_channel;
    max_bytes = most;
    totals = (struct rows_totals){0, 0, false};
    void *memory = mmap(NULL, sizeof *work, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    work = memory == MAP_FAILED ? NULL : memory;
    own_memory = work ? open("/proc/self/mem", O_RDONLY | O_CLOEXEC) : -1;
    return work != NULL;
}

void rows_close(void)
{
    if (own_memory >= 0)
        close(own_memory);
    munmap(work, sizeof *work);
    work = NULL;
}

struct rows_totals rows_totals(void)
{
    return totals;
}

/* Whether a chunk with this payload may still be sent. */
static bool fits(size_t payload_bytes)
{
    bool fits = channel->sent_bytes + sizeof(struct wire_header) + payload_bytes <= max_bytes;
    totals.too_many |= !fits;
    return fits;
}

static void flush(int which)
{
    struct batch *batch = &work->batches[which];
    batch->header.kind = chunk_of[which];
    if (batch->header.bytes && fits(batch->header.bytes))
        channel_write(channel, batch, sizeof batch->header + batch->header.bytes);
    batch->header.bytes = 0;
}

static void send_name(enum wire_chunk kind, uint32_t id, const char *name)
{
    if (fits(sizeof id + strnlen(name, TEXT_BYTES_MOST)))
        channel_send(channel, kind, &id, sizeof id, name);
}

void rows_flush(void)
{
    for (int which = 0; which < BATCHES; which++)
        flush(which);
}

static void add(int which, const void *row, size_t bytes)
{
    struct batch *batch = &work->batches[which];
    if (batch->header.bytes + bytes > BATCH_BYTES)
        flush(which);
    memcpy(batch->rows + batch->header.bytes, row, bytes);
    batch->header.bytes += (uint32_t)bytes;
}

/* The text at an address of our own process, in work->name; false when it can't be had. The kernel copies it, since the
 * module that it belonged to may have been unloaded, and reading it ourselves would end the target. */
static bool read_text(uint64_t address)
{
    size_t length = 0;
    while (length < TEXT_BYTES_MOST) {
        size_t piece = PAGE - (address + length) % PAGE;
        piece = piece < TEXT_BYTES_MOST - length ? piece : TEXT_BYTES_MOST - length;
        if (own_memory < 0 || pread(own_memory, work->name + length, piece, (off_t)(address + length)) != (ssize_t)piece)
            return false;
        if (memchr(work->name + length, 0, piece))
            return true;
        length += piece;
    }
    work->name[length] = 0;
    return true;
}

static uint64_t mixed(uint64_t value)
{
    value = (value ^ value >> 31) * 0x9e3779b97f4a7c15ull;
    return value ^ value >> 29;
}

static uint64_t hash_of(const char *text)
{
    size_t length = strlen(text);
    uint64_t hash = length + 1;
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = mixed(hash ^ word) + 0x632be59bd9b4e019ull;
    }
    for (; length; text++, length--)
        hash = mixed(hash ^ (uint8_t)*text);
    return hash ? hash : 1;
}

static struct named *find(struct named *table, uint64_t key)
{
    for (size_t at = mixed(key) % TABLE;; at = (at + 1) % TABLE)
        if (table[at].key == key || !table[at].key)
            return &table[at];
}

/* The id of a kernel's name, which is sent when it is new; 0: unknown. A pointer is read once in a window. */
static uint32_t name_id(uint64_t pointer)
{
    if (!pointer)
        return 0;
    struct named *known = find(work->by_pointer, pointer);
    if (known->key)
        return known->id;
    if (!read_text(pointer))
        return 0;
    uint64_t hash = hash_of(work->name);
    struct named *same = find(work->by_content, hash);
    if (!same->key) {
        if (work->names == NAMES_MOST)
            return 0;
        *same = (struct named){hash, ++work->names};
        send_name(CHUNK_NAME, same->id, work->name);
    }
    if (work->pointers < NAMES_MOST) {
        work->pointers++;
        *known = (struct named){pointer, same->id};
    }
    return same->id;
}

static void name_callback(uint32_t activity, uint32_t callback, uint32_t api)
{
    int domain = activity == ACTIVITY_DRIVER ? DOMAIN_DRIVER : DOMAIN_RUNTIME;
    bool *sent = callback < CALLBACKS_MOST ? &work->callback_sent[domain - 1][callback] : NULL;
    const char *name = NULL;
    if (!sent || *sent)
        return;
    *sent = true;
    if (!cupti->callback_name(domain, callback, &name) && name)
        send_name(CHUNK_API_NAME, api, name);
}

static uint16_t u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void add_kernel(const uint8_t *r)
{
    struct wire_kernel row = {
        .start = u64(r + KERNEL_START),
        .end = u64(r + KERNEL_END),
        .graph_node = u64(r + KERNEL_GRAPH_NODE),
        .correlation = u32(r + KERNEL_CORRELATION),
        .name = name_id(u64(r + KERNEL_NAME)),
        .device = u32(r + KERNEL_DEVICE),
        .context = u32(r + KERNEL_CONTEXT),
        .stream = u32(r + KERNEL_STREAM),
        .graph = u32(r + KERNEL_GRAPH),
        .registers = u16(r + KERNEL_REGISTERS),
        .shared_static_bytes = u32(r + KERNEL_SHARED_STATIC),
        .shared_dynamic_bytes = u32(r + KERNEL_SHARED_DYNAMIC),
        .local_per_thread_bytes = u32(r + KERNEL_LOCAL),
    };
    memcpy(row.grid, r + KERNEL_GRID, sizeof row.grid);
    memcpy(row.block, r + KERNEL_BLOCK, sizeof row.block);
    add(KERNELS, &row, sizeof row);
}

static void add_copy(const uint8_t *r, int correlation, int graph_node, int graph)
{
    struct wire_copy row = {
        .start = u64(r + COPY_START),
        .end = u64(r + COPY_END),
        .bytes = u64(r + COPY_SIZE),
        .graph_node = u64(r + graph_node),
        .correlation = u32(r + correlation),
        .device = u32(r + COPY_DEVICE),
        .context = u32(r + COPY_CONTEXT),
        .stream = u32(r + COPY_STREAM),
        .graph = u32(r + graph),
        .copy_kind = r[COPY_KIND],
        .src_memory = r[COPY_KIND + 1],
        .dst_memory = r[COPY_KIND + 2],
        .flags = r[COPY_KIND + 3],
    };
    add(COPIES, &row, sizeof row);
}

static void add_memset(const uint8_t *r)
{
    struct wire_memset row = {
        .start = u64(r + MEMSET_START),
        .end = u64(r + MEMSET_END),
        .bytes = u64(r + MEMSET_SIZE),
        .graph_node = u64(r + MEMSET_GRAPH_NODE),
        .correlation = u32(r + MEMSET_CORRELATION),
        .device = u32(r + MEMSET_DEVICE),
        .context = u32(r + MEMSET_CONTEXT),
        .stream = u32(r + MEMSET_STREAM),
        .graph = u32(r + MEMSET_GRAPH),
        .memory = u16(r + MEMSET_MEMORY),
    };
    add(MEMSETS, &row, sizeof row);
}

static void add_call(const uint8_t *r)
{
    uint32_t activity = u32(r + RECORD_KIND), callback = u32(r + CALL_CALLBACK);
    struct wire_call row = {
        .start = u64(r + CALL_START),
        .end = u64(r + CALL_END),
        .correlation = u32(r + CALL_CORRELATION),
        .thread = u32(r + CALL_THREAD),
        .api = activity << 24 | (callback & 0xffffff),
        .result = (int32_t)u32(r + CALL_RESULT),
    };
    name_callback(activity, callback, row.api);
    add(CALLS, &row, sizeof row);
}

static void take_record(const uint8_t *record, size_t left)
{
    switch (u32(record + RECORD_KIND)) {
    case ACTIVITY_KERNEL:
        if (left >= KERNEL_BYTES)
            add_kernel(record);
        break;
    case ACTIVITY_COPY:
        if (left >= COPY_BYTES)
            add_copy(record, COPY_CORRELATION, COPY_GRAPH_NODE, COPY_GRAPH);
        break;
    case ACTIVITY_PEER_COPY:
        if (left >= PEER_COPY_BYTES)
            add_copy(record, PEER_COPY_CORRELATION, PEER_COPY_GRAPH_NODE, PEER_COPY_GRAPH);
        break;
    case ACTIVITY_MEMSET:
        if (left >= MEMSET_BYTES)
            add_memset(record);
        break;
    case ACTIVITY_DRIVER:
    case ACTIVITY_RUNTIME:
        if (left >= CALL_BYTES)
            add_call(record);
        break;
    default: /* another client's kind of record */
        break;
    }
}

void rows_take(uint8_t *buffer, size_t valid_bytes)
{
    uint8_t *record = NULL, *before = NULL;
    totals.bytes += valid_bytes;
    /* CUPTI alone knows how long each record is. It must go forward, and stay within the buffer. */
    while (!cupti->next_record(buffer, valid_bytes, &record) && record > before) {
        if (record < buffer || record + LEAST_RECORD > buffer + valid_bytes)
            return;
        totals.records++;
        take_record(record, (size_t)(buffer + valid_bytes - record));
        before = record;
    }
}
