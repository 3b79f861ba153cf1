/* A stand-in for CUPTI: the same functions, records of the version that FAKE_CUPTI_VERSION names, no GPU.
 *
 * `fake_*` are for the host program. What CUPTI promises is kept: a buffer belongs to it from the request callback to the
 * completion callback, records of all clients go to the one pair of callbacks, kinds are one set for all clients.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { STREAMS = 48, KINDS = 64, KEPT = 256, CALLBACKS = 1024 };

struct kernel {
    uint32_t kind;
    uint8_t cache[2];
    uint16_t registers;
    uint8_t unused_a[8];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], shared_static, shared_dynamic;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
    uint8_t unused_b[32];
    uint64_t graph_node;
    uint32_t shared_carveout, graph, launch_type, more;
};
_Static_assert(offsetof(struct kernel, start) == 16 && offsetof(struct kernel, grid) == 52, "kernel");
_Static_assert(offsetof(struct kernel, local_per_thread) == 84 && offsetof(struct kernel, correlation) == 92, "kernel");
_Static_assert(offsetof(struct kernel, name) == 104 && offsetof(struct kernel, graph_node) == 144, "kernel");
_Static_assert(offsetof(struct kernel, graph) == 156, "kernel");

struct copy {
    uint32_t kind;
    uint8_t copy_kind, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, pad;
    void *unused;
    uint64_t graph_node;
    uint32_t graph, channel;
};
_Static_assert(offsetof(struct copy, correlation) == 44 && offsetof(struct copy, graph_node) == 64, "copy");

struct peer_copy {
    uint32_t kind;
    uint8_t copy_kind, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, from_device, from_context, to_device, to_context, correlation;
    void *unused;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type, pad;
};
_Static_assert(offsetof(struct peer_copy, correlation) == 60 && offsetof(struct peer_copy, graph_node) == 72, "peer copy");

struct memory_set {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t pad;
    void *unused;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type, pad_b;
};
_Static_assert(offsetof(struct memory_set, memory) == 50 && offsetof(struct memory_set, graph_node) == 64, "memset");

struct call {
    uint32_t kind, callback;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
};
_Static_assert(sizeof(struct call) == 40, "call");

typedef void request_function(uint8_t **buffer, size_t *size, size_t *most);
typedef void complete_function(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

static request_function *request;
static complete_function *complete;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream {
    uint8_t *buffer;
    size_t size, used;
} streams[STREAMS];
static struct kept {
    uint8_t *buffer;
    size_t size, used;
} kept[KEPT];
static int kept_count;
static bool enabled[KINDS];
static bool left_out[KINDS][CALLBACKS]; /* single calls; turning a kind on or off overrides it */
static size_t dropped_now;

/* Set by the host. */
EXPORT atomic_int fake_enable_fails; /* the result code that enabling gives */
EXPORT atomic_int fake_register_fails, fake_version_fails;
EXPORT atomic_int fake_torch_at_disable; /* the torch profiler starts as the n-th kind is turned off */
EXPORT atomic_int fake_hang;       /* 1: flush waits until this is 0 again */
EXPORT atomic_int fake_keep;       /* so many buffers a flush leaves out, for ever */
EXPORT atomic_int fake_late;       /* so many a flush leaves out until fake_return_late */
EXPORT atomic_int fake_bad_names;  /* kernels' names are no addresses */
EXPORT atomic_int fake_many_names; /* each kernel has a name of its own */
EXPORT atomic_int fake_long_name;  /* a name of this many characters */
EXPORT atomic_int fake_garbage;    /* GetNextRecord leaves the buffer */
EXPORT atomic_int fake_work_us;    /* a step's pace */
/* Read by the host. */
EXPORT atomic_long fake_emitted[KINDS], fake_dropped, fake_requests, fake_refused, fake_finalized, fake_flushes;
EXPORT atomic_long fake_ever_enabled[KINDS], fake_asked, fake_stray_calls;

static uint32_t version(void)
{
    const char *text = getenv("FAKE_CUPTI_VERSION");
    return text ? (uint32_t)atoi(text) : 130001;
}

static size_t size_of(uint32_t kind)
{
    uint32_t now = version();
    switch (kind) {
    case 10:
        return now < 130000 ? 208 : now < 130100 ? 216 : now < 130300 ? 224 : 232;
    case 1:
        return now < 26 ? 88 : 96;
    case 22:
        return 96;
    case 2:
        return 88;
    case 4:
    case 5:
        return 40;
    case 9: /* somebody else's */
        return 24;
    }
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

EXPORT int cuptiGetVersion(uint32_t *into)
{
    fake_asked++;
    *into = version();
    return fake_version_fails;
}

EXPORT int cuptiGetTimestamp(uint64_t *into) { return *into = now_ns(), 0; }
EXPORT int cuptiFinalize(void) 
{
    fake_finalized++;
    return 0;
}

EXPORT int cuptiGetResultString(int result, const char **text)
{
    *text = result == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN";
    return 0;
}

EXPORT int cuptiGetCallbackName(int domain, uint32_t callback, const char **name)
{
    *name = domain == 1 ? "cuLaunchKernelEx" : callback == 211 ? "cudaLaunchKernel_v7000" : "cudaGetDevice_v3020";
    return domain == 1 || domain == 2 ? 0 : 1;
}

EXPORT int cuptiActivityRegisterCallbacks(request_function *the_request, complete_function *the_complete)
{
    if (fake_register_fails)
        return fake_register_fails;
    pthread_mutex_lock(&lock);
    request = the_request;
    complete = the_complete;
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuptiActivityEnable(int kind)
{
    if (fake_enable_fails)
        return fake_enable_fails;
    fake_ever_enabled[kind]++;
    enabled[kind] = true;
    memset(left_out[kind], 0, sizeof left_out[kind]);
    return 0;
}

#ifndef NO_SINGLE_CALLS
static int enable_call(int kind, uint32_t callback, uint8_t on)
{
    /* With its kind off a single call would be the only one that is on: nobody here wants that. */
    fake_stray_calls += !enabled[kind];
    left_out[kind][callback] = !on;
    return 0;
}

EXPORT int cuptiActivityEnableRuntimeApi(uint32_t callback, uint8_t on) { return enable_call(5, callback, on); }
EXPORT int cuptiActivityEnableDriverApi(uint32_t callback, uint8_t on) { return enable_call(4, callback, on); }
#endif

EXPORT int cuptiActivityDisable(int kind)
{
    enabled[kind] = false;
    if (fake_torch_at_disable && !--fake_torch_at_disable)
        ((void (*)(void))dlsym(RTLD_DEFAULT, "fake_torch_start"))();
    return 0;
}

EXPORT int fake_enabled(int kind) { return enabled[kind]; }

EXPORT int fake_left_out(int kind)
{
    int count = 0;
    for (int callback = 0; callback < CALLBACKS; callback++)
        count += left_out[kind][callback];
    return count;
}

EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count)
{
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    *count = dropped_now;
    dropped_now = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record)
{
    if (fake_garbage) {
        *record = *record ? *record + ((size_t)1 << 40) : buffer;
        return 0;
    }
    uint8_t *next = *record ? *record + size_of(*(uint32_t *)*record) : buffer;
    if (next >= buffer + valid)
        return 12;
    *record = next;
    return 0;
}

static void give_back(uint8_t *buffer, size_t size, size_t used)
{
    if (buffer)
        complete(NULL, 0, buffer, size, used);
}

EXPORT int cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag; /* every record here is complete */
    fake_flushes++;
    while (fake_hang)
        usleep(1000);
    pthread_mutex_lock(&lock);
    for (struct stream *stream = streams; stream < streams + STREAMS; stream++) {
        if (!stream->buffer)
            continue;
        if (fake_keep > 0 || fake_late > 0) {
            if (fake_keep > 0)
                fake_keep--;
            else {
                fake_late--;
                kept[kept_count++] = (struct kept){stream->buffer, stream->size, stream->used};
            }
        } else
            give_back(stream->buffer, stream->size, stream->used);
        *stream = (struct stream){0};
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT void fake_return_late(void)
{
    pthread_mutex_lock(&lock);
    while (kept_count) {
        struct kept *one = &kept[--kept_count];
        give_back(one->buffer, one->size, one->used);
    }
    pthread_mutex_unlock(&lock);
}

/* A buffer of some client that was there before, given to whoever listens now. */
EXPORT void fake_foreign(void)
{
    uint8_t *buffer = malloc(4096);
    memset(buffer, 0, 4096);
    *(uint32_t *)buffer = 9;
    pthread_mutex_lock(&lock);
    give_back(buffer, 4096, 24);
    pthread_mutex_unlock(&lock);
    free(buffer); /* still ours: a client that had freed it would end the program here */
}

static void put(int at, const void *record, size_t known)
{
    uint32_t kind = *(const uint32_t *)record;
    size_t size = size_of(kind);
    struct stream *stream = &streams[at];
    if (!enabled[kind] || ((kind == 4 || kind == 5) && left_out[kind][((const struct call *)record)->callback]))
        return;
    fake_emitted[kind]++;
    pthread_mutex_lock(&lock);
    if (stream->buffer && stream->used + size > stream->size) {
        give_back(stream->buffer, stream->size, stream->used);
        stream->buffer = NULL;
    }
    if (!stream->buffer) {
        size_t most = 0;
        fake_requests++;
        *stream = (struct stream){0};
        request(&stream->buffer, &stream->size, &most);
        if (stream->buffer)
            memset(stream->buffer, 0, stream->size);
        else
            fake_refused++;
    }
    if (stream->buffer) {
        memcpy(stream->buffer + stream->used, record, known < size ? known : size);
        stream->used += size;
    } else {
        dropped_now++;
        fake_dropped++;
    }
    pthread_mutex_unlock(&lock);
}

static const char *const names[] = {"_Z6decodePfi", "_Z7prefillPfi", "_Z6decodePfi"};
static atomic_uint correlations;

static const char *name_of(unsigned number)
{
    static char own[65536][16];
    static char *long_name;
    if (fake_bad_names)
        return (const char *)(uintptr_t)(number % 2 ? 0x10 : 0xfff0000000000000ull);
    if (fake_long_name) {
        if (!long_name) {
            long_name = malloc((size_t)fake_long_name + 1);
            memset(long_name, 'k', (size_t)fake_long_name);
            long_name[fake_long_name] = 0;
        }
        return long_name;
    }
    if (fake_many_names) {
        char *name = own[number % 65536];
        name[0] = 'k';
        for (int at = 1; at < 6; at++, number /= 26)
            name[at] = (char)('a' + number % 26);
        return name;
    }
    return names[number % 3];
}

/* One step of a thread: a graph replay of two kernels, a copy, a copy between GPUs, a memset, and the calls. */
static void step(int at)
{
    unsigned correlation = ++correlations;
    uint64_t now = now_ns();
    uint32_t thread = (uint32_t)(uintptr_t)pthread_self();
    struct call runtime = {5, 211, now - 900, now - 500, (uint32_t)getpid(), thread, correlation, 0};
    struct call driver = {4, 652, now - 800, now - 600, (uint32_t)getpid(), thread, correlation, 7};
    put(at, &runtime, sizeof runtime);
    put(at, &driver, sizeof driver);
    for (unsigned node = 1; node <= 2; node++) {
        struct kernel kernel = {
            .kind = 10, .registers = 96, .start = now + 100 * node, .end = now + 100 * node + 90, .device = 3, .context = 1,
            .stream = (uint32_t)at, .grid = {132, 2, 1}, .block = {256, 1, 4}, .shared_static = 1024,
            .shared_dynamic = 49152, .local_per_thread = 16, .correlation = correlation,
            .name = name_of(2 * correlation + node), .graph_node = 7000 + node, .graph = 70,
        };
        put(at, &kernel, sizeof kernel);
    }
    struct copy copy = {.kind = 1, .copy_kind = 1, .from = 2, .to = 3, .flags = 1, .bytes = 4096, .start = now, .end = now + 50,
                        .device = 3, .context = 1, .stream = (uint32_t)at, .correlation = correlation, .graph_node = 7003,
                        .graph = 70};
    struct peer_copy peer = {.kind = 22, .copy_kind = 10, .from = 3, .to = 3, .flags = 0, .bytes = 8192, .start = now,
                             .end = now + 60, .device = 3, .context = 1, .stream = (uint32_t)at, .from_device = 3,
                             .to_device = 2, .correlation = correlation, .graph_node = 7004, .graph = 70};
    struct memory_set set = {.kind = 2, .bytes = 512, .start = now, .end = now + 5, .device = 3, .context = 1,
                             .stream = (uint32_t)at, .correlation = correlation, .memory = 3, .graph_node = 7005, .graph = 70};
    put(at, &copy, sizeof copy);
    put(at, &peer, sizeof peer);
    put(at, &set, sizeof set);
}

/* What a framework asks between two launches. */
EXPORT void fake_lookups(int at, int count)
{
    static const uint32_t numbers[][2] = {{5, 17}, {4, 392}, {5, 10}, {4, 310}, {5, 317}, {4, 719}, {4, 304}, {5, 151}};
    while (count--)
        for (int one = 0; one < 8; one++) {
            uint64_t now = now_ns();
            struct call call = {numbers[one][0], numbers[one][1], now - 50, now, (uint32_t)getpid(), 7, ++correlations, 0};
            put(at, &call, sizeof call);
        }
}

EXPORT void fake_steps(int at, int count)
{
    while (count--)
        step(at);
}

/* The steps of a rank that have passed since the last call: a product, then an all-reduce that ends for all at once. They
 * lie on a grid of the wall clock, so that those of several processes fit together; a late rank multiplies for longer. */
EXPORT void fake_rank_steps(int device, int late_us)
{
    enum { PERIOD_NS = 5000000, PRODUCT_NS = 2000000, ENDS_NS = 4500000 };
    static uint64_t next;
    uint64_t now = now_ns();
    if (!next)
        next = now / PERIOD_NS;
    for (; (next + 1) * PERIOD_NS <= now; next++) {
        uint64_t begins = next * PERIOD_NS, arrives = begins + PRODUCT_NS + 1000ull * (unsigned)late_us;
        struct kernel kernel = {.kind = 10, .start = begins, .end = arrives, .device = (uint32_t)device, .context = 1,
                                .stream = 7, .grid = {132, 1, 1}, .block = {256, 1, 1}, .correlation = ++correlations,
                                .name = "nvjet_tst_64x64_64x16_4x1_v_bz_TNT"};
        put(0, &kernel, sizeof kernel);
        kernel.start = arrives;
        kernel.end = begins + ENDS_NS;
        kernel.grid[0] = 24;
        kernel.correlation = ++correlations;
        kernel.name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        put(0, &kernel, sizeof kernel);
    }
}

static atomic_bool working;
static pthread_t workers[STREAMS];
static int worker_count;

static void *work(void *at)
{
    while (working) {
        step((int)(intptr_t)at);
        if (fake_work_us)
            usleep((useconds_t)(int)fake_work_us);
    }
    return NULL;
}

EXPORT void fake_work(int threads)
{
    working = true;
    for (worker_count = 0; worker_count < threads; worker_count++)
        pthread_create(&workers[worker_count], NULL, work, (void *)(intptr_t)worker_count);
}

EXPORT void fake_rest(void)
{
    working = false;
    while (worker_count)
        pthread_join(workers[--worker_count], NULL);
}
