#include "system.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "pool.h"

/* More than one window has, since CUPTI may keep a buffer for ever: another client's callbacks may have been given it. */
enum { SLOTS = 64, PREPARED = 8, FEWEST = 8 };

enum state {
    EMPTY,  /* no memory */
    FREE,   /* ours, to be handed out */
    GIVEN,  /* CUPTI's */
    LOST,   /* CUPTI's since an earlier window */
    FILLED, /* back, to be read */
    LATE,   /* back from an earlier window: its records belong to none */
};

static struct slot {
    _Atomic(int) state;
    _Atomic(uint8_t *) memory; /* changes only while EMPTY */
    size_t valid_bytes;
} slots[SLOTS];

static atomic_bool is_open;
static atomic_uint foreign;

static bool change(struct slot *slot, int from, int to)
{
    return atomic_compare_exchange_strong(&slot->state, &from, to);
}

static bool map(struct slot *slot, bool prepared)
{
    /* So that the page faults of the first buffers are ours, not those of a thread that launches kernels. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (prepared ? MAP_POPULATE : 0);
    void *memory = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    atomic_store(&slot->memory, memory);
    return true;
}

bool pool_open(void)
{
    unsigned ready = 0;
    atomic_store(&foreign, 0);
    for (struct slot *slot = slots; slot < slots + SLOTS; slot++) {
        change(slot, LATE, FREE);
        change(slot, FILLED, FREE);
        change(slot, GIVEN, LOST);
        if (ready == BUFFERS_IN_A_WINDOW)
            continue;
        if (atomic_load(&slot->state) == EMPTY && map(slot, ready < PREPARED))
            change(slot, EMPTY, FREE);
        ready += atomic_load(&slot->state) == FREE;
    }
    atomic_store(&is_open, ready >= FEWEST);
    return ready >= FEWEST;
}

void pool_close(void)
{
    atomic_store(&is_open, false);
}

void pool_release(void)
{
    for (struct slot *slot = slots; slot < slots + SLOTS; slot++) {
        if (!change(slot, FREE, EMPTY) && !change(slot, LATE, EMPTY) && !change(slot, FILLED, EMPTY))
            continue;
        uint8_t *memory = atomic_exchange(&slot->memory, NULL);
        munmap(memory, BUFFER_BYTES);
    }
}

unsigned pool_given(void)
{
    unsigned count = 0;
    for (struct slot *slot = slots; slot < slots + SLOTS; slot++)
        count += atomic_load(&slot->state) == GIVEN;
    return count;
}

unsigned pool_foreign(void)
{
    return atomic_load(&foreign);
}

uint8_t *pool_filled(size_t *valid_bytes)
{
    for (struct slot *slot = slots; slot < slots + SLOTS; slot++) {
        if (atomic_load(&slot->state) == FILLED) {
            *valid_bytes = slot->valid_bytes;
            return atomic_load(&slot->memory);
        }
    }
    return NULL;
}

static struct slot *slot_of(const uint8_t *buffer)
{
    for (struct slot *slot = slots; buffer && slot < slots + SLOTS; slot++)
        if (atomic_load(&slot->memory) == buffer)
            return slot;
    return NULL;
}

void pool_recycle(uint8_t *buffer)
{
    change(slot_of(buffer), FILLED, FREE);
}

void pool_on_request(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *buffer = NULL;
    *bytes = 0;
    *most_records = 0;
    if (!atomic_load(&is_open))
        return;
    /* From the first one on, so that memory that is in use already is used again. */
    for (struct slot *slot = slots; slot < slots + SLOTS; slot++) {
        if (atomic_load(&slot->state) == FREE && change(slot, FREE, GIVEN)) {
            *buffer = atomic_load(&slot->memory);
            *bytes = BUFFER_BYTES;
            return;
        }
    }
}

void pool_on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes)
{
    (void)context, (void)stream, (void)bytes;
    struct slot *slot = slot_of(buffer);
    if (!slot) {
        atomic_fetch_add(&foreign, 1);
        return;
    }
    if (atomic_load(&slot->state) == LOST) {
        change(slot, LOST, LATE);
        return;
    }
    slot->valid_bytes = valid_bytes < BUFFER_BYTES ? valid_bytes : BUFFER_BYTES;
    change(slot, GIVEN, FILLED);
}
