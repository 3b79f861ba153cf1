/* One window, from the greeting to the end. All state is static and begins anew each time: there is one at a time. */
#include "system.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#include "channel.h"
#include "client.h"
#include "cupti.h"
#include "kinds.h"
#include "others.h"
#include "pool.h"
#include "rows.h"

enum {
    COMMAND_WAIT_MS = 60000, /* the other ranks are reached meanwhile: COMMAND_WAIT_S in __init__.py */
    START_WAIT_S = 30,
    LOOK_MS = 10,
    TORCH_LOOK_MS = 5,    /* what it records until it is seen is lost to it; each look wakes a thread */
    CLOSE_WAIT_S = 5,     /* for CUPTI to disable and flush */
    RETURN_WAIT_MS = 300, /* for its buffers, after that */
    AFTER_TAKEOVER_S = 3600,
};

enum closing { CLOSING, CLOSED, ABANDONED };

atomic_int gputop_client_busy;

static struct channel channel;
static struct cupti cupti;
static struct neighbours neighbours;
static struct wire_command_packet order;

static bool collecting;
static atomic_bool taken_over; /* by the torch profiler */
static uint64_t ends_at, looked_at, disabling_ns, flushing_ns;
static struct wire_ended ended;
static atomic_int closing;

static void refuse(enum wire_refusal reason, int result, const char *sentence)
{
    struct wire_refused refused = {reason, (uint32_t)result};
    channel_send(&channel, CHUNK_REFUSED, &refused, sizeof refused, sentence);
}

static bool refused_by_cupti(int result, const char *what)
{
    char sentence[256];
    const char *text = NULL;
    if (cupti.result_text(result, &text) || !text)
        text = "no name";
    snprintf(sentence, sizeof sentence, "CUPTI refused to %s: %s (%d)", what, text, result);
    refuse(REFUSAL_CUPTI, result, sentence);
    return false;
}

/* The clocks at one moment, as nearly as can be: the quickest of some readings. */
static struct wire_clocks read_clocks(void)
{
    struct wire_clocks best = {0, 0, 0, 0};
    uint64_t quickest = UINT64_MAX;
    for (int turn = 0; turn < 8; turn++) {
        struct wire_clocks now;
        uint64_t before = monotonic_ns();
        now.tsc = __rdtsc();
        if (cupti.get_timestamp(&now.cupti))
            now.cupti = 0;
        now.realtime = clock_ns(CLOCK_REALTIME);
        uint64_t took = monotonic_ns() - before;
        now.monotonic = before + took / 2;
        if (took < quickest) {
            quickest = took;
            best = now;
        }
    }
    return best;
}

/* Another profiler owns, or may own, the one set of callbacks that CUPTI has. */
static bool refused_for_others(void)
{
    char sentence[PATH_BYTES + 128];
    neighbours_look(&neighbours);
    if (neighbours.tool[0]) {
        snprintf(sentence, sizeof sentence, "another profiler is in the process: %s", neighbours.tool);
        refuse(REFUSAL_OTHER_TOOL, 0, sentence);
        return true;
    }
    if (neighbours_busy(&neighbours)) {
        refuse(REFUSAL_BUSY, 0, "another copy of this client is taking a window in this process");
        return true;
    }
    torch_find(&neighbours);
    if (torch_state() == TORCH_ACTIVE) {
        refuse(REFUSAL_PROFILING, 0, "the torch profiler is at work in this process");
        return true;
    }
    return false;
}

bool cupti_resolve(struct cupti *into, void *library)
{
    /* A function's address and an object's have one size on every system that has dlsym. */
    const struct {
        const char *name;
        void *function;
        bool optional;
    } wanted[] = {
        {"cuptiGetVersion", &into->get_version, false},
        {"cuptiGetTimestamp", &into->get_timestamp, false},
        {"cuptiGetResultString", &into->result_text, false},
        {"cuptiGetCallbackName", &into->callback_name, false},
        {"cuptiActivityRegisterCallbacks", &into->register_callbacks, false},
        {"cuptiActivityEnable", &into->enable, false},
        {"cuptiActivityDisable", &into->disable, false},
        {"cuptiActivityFlushAll", &into->flush_all, false},
        {"cuptiActivityGetNumDroppedRecords", &into->dropped, false},
        {"cuptiActivityGetNextRecord", &into->next_record, false},
        {"cuptiActivityEnableRuntimeApi", &into->enable_runtime_call, true},
        {"cuptiActivityEnableDriverApi", &into->enable_driver_call, true},
    };
    for (size_t at = 0; at < sizeof wanted / sizeof *wanted; at++) {
        void *symbol = dlsym(library, wanted[at].name);
        if (!symbol && !wanted[at].optional)
            return false;
        memcpy(wanted[at].function, &symbol, sizeof symbol);
    }
    return true;
}

static bool refused_for_cupti(void)
{
    char sentence[128];
    if (neighbours.cuptis != 1) {
        const char *none = "CUPTI (libcupti.so) isn't loaded in this process, and this client loads no copy of its own";
        const char *many = "several copies of CUPTI are loaded in this process: which one is in use can't be told";
        refuse(REFUSAL_NO_CUPTI, 0, neighbours.cuptis ? many : none);
        return true;
    }
    /* CUPTI 13.2 ends the process when it is asked anything where there is no driver. */
    if (!neighbours.has_driver) {
        refuse(REFUSAL_NO_CUPTI, 0, "this process doesn't use CUDA: the driver's library (libcuda.so) isn't loaded in it");
        return true;
    }
    /* Never closed: CUPTI will call us as long as the process lives, so it must stay, too. */
    void *library = dlopen(neighbours.cupti, RTLD_NOW | RTLD_NOLOAD);
    if (!library || !cupti_resolve(&cupti, library)) {
        refuse(REFUSAL_CUPTI_VERSION, 0, "the CUPTI in this process lacks what a window needs");
        return true;
    }
    int result = cupti.get_version(&cupti.version);
    if (result)
        return !refused_by_cupti(result, "tell its version");
    bool known_12 = cupti.version >= CUPTI_OLDEST_12 && cupti.version <= CUPTI_NEWEST_12;
    bool known_13 = cupti.version >= CUPTI_OLDEST_13 && cupti.version <= CUPTI_NEWEST_13;
    if (!known_12 && !known_13) {
        snprintf(sentence, sizeof sentence, "CUPTI's API version %u isn't known here (known: CUDA 12.0 to 13.3)", cupti.version);
        refuse(REFUSAL_CUPTI_VERSION, 0, sentence);
        return true;
    }
    return false;
}

static bool hear_order(void)
{
    switch (channel_hear(&channel, COMMAND_WAIT_MS, &order)) {
    case HEARD_NOTHING:
        refuse(REFUSAL_COMMAND, 0, "no command came within 60 s");
        return false;
    case HEARD_END:
        return false;
    case HEARD_COMMAND:
        break;
    }
    if (order.command == COMMAND_STOP) {
        refuse(REFUSAL_STOPPED, 0, "stopped before the window began");
        return false;
    }
    uint64_t now = monotonic_ns();
    bool bounded = order.command == COMMAND_WINDOW && order.kinds && !(order.kinds & ~(uint32_t)KINDS_ALL) &&
                   order.window_ns && order.window_ns <= WIRE_MAX_WINDOW_NS && order.max_bytes &&
                   order.max_bytes <= WIRE_MAX_WINDOW_BYTES && order.start_at <= now + START_WAIT_S * SECOND_NS;
    if (!bounded)
        refuse(REFUSAL_COMMAND, 0, "the command asks for what is beyond this client's bounds");
    return bounded;
}

/* Until the moment when all ranks begin; false: told to end before. */
static bool wait_for_start(void)
{
    struct wire_command_packet stop;
    for (uint64_t now; (now = monotonic_ns()) < order.start_at;) {
        uint64_t left_ms = (order.start_at - now) / MS_NS;
        enum heard heard = channel_hear(&channel, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS, &stop);
        if (heard == HEARD_COMMAND)
            refuse(REFUSAL_STOPPED, 0, "stopped before the window began");
        if (heard != HEARD_NOTHING)
            return false;
    }
    return true;
}

static bool enable_all(void)
{
    int result = cupti.register_callbacks(pool_on_request, pool_on_complete);
    if (result)
        return refused_by_cupti(result, "deliver its records to this client");
    result = kinds_enable(&cupti, order.kinds);
    return result ? refused_by_cupti(result, "record") : true;
}

/* The torch profiler goes on with what it uses; when it has ended, what it didn't turn off is. Our buffers leave CUPTI at
 * once, by an unforced flush as anybody may do at any time, so that its records go to its own: it passes over unknown ones. */
static void *outlast_profiler(void *unused)
{
    uint64_t began = monotonic_ns();
    if (torch_state() == TORCH_ACTIVE)
        cupti.flush_all(FLUSH_WHOLE);
    kinds_leave_nothing_out();
    while (torch_state() == TORCH_ACTIVE && monotonic_ns() - began < AFTER_TAKEOVER_S * SECOND_NS)
        sleep_ms(100);
    if (torch_state() != TORCH_ACTIVE)
        kinds_disable_all();
    atomic_store(&gputop_client_busy, 0);
    return unused;
}

/* On a thread of its own, since CUPTI may never come back from it. */
static void *close_window(void *unused)
{
    uint64_t began = monotonic_ns();
    /* Kinds are one set for all clients. Who has begun in this very moment keeps them. */
    while (!(taken_over = torch_state() == TORCH_ACTIVE) && kinds_on())
        kinds_disable_last();
    uint64_t disabled = monotonic_ns();
    disabling_ns = disabled - began;
    if (!kinds_on()) {
        cupti.flush_all(FLUSH_FORCED);
        /* Work that ended meanwhile may have been given a new buffer, which nothing else would bring back. */
        pool_close();
        if (pool_given())
            cupti.flush_all(FLUSH_FORCED);
    }
    flushing_ns = monotonic_ns() - disabled;
    int expected = CLOSING;
    return atomic_compare_exchange_strong(&closing, &expected, CLOSED) ? unused : outlast_profiler(unused);
}

static void stop_collecting(enum wire_end reason)
{
    collecting = false;
    taken_over = torch_state() == TORCH_ACTIVE;
    ended.clocks = read_clocks();
    ended.reason = taken_over ? END_PROFILER_TOOK_OVER : reason;
    if (taken_over)
        return;
    atomic_store(&closing, CLOSING);
    if (!start_thread(close_window, NULL))
        close_window(NULL);
}

/* Looks whether the window must end; also while the reader keeps us waiting. */
static void watch(void)
{
    struct wire_command_packet packet;
    if (!collecting)
        return;
    uint64_t now = monotonic_ns();
    enum heard heard = channel_hear(&channel, 0, &packet);
    bool look = now - looked_at >= TORCH_LOOK_MS * MS_NS;
    if (look)
        looked_at = now;
    if (heard == HEARD_END)
        channel.gone = true;
    if (heard != HEARD_NOTHING || channel.gone)
        stop_collecting(END_STOPPED);
    else if (now >= ends_at)
        stop_collecting(END_TIME_UP);
    else if (rows_totals().too_many)
        stop_collecting(END_TOO_MANY_BYTES);
    /* A buffer of somebody else's, where the torch profiler can't be asked: somebody was at work when we came. */
    else if (look && (torch_state() == TORCH_ACTIVE || (pool_foreign() && torch_state() != TORCH_IDLE)))
        stop_collecting(END_PROFILER_TOOK_OVER);
}

static void drain(void)
{
    uint8_t *buffer;
    size_t valid_bytes;
    while ((buffer = pool_filled(&valid_bytes))) {
        rows_take(buffer, valid_bytes);
        pool_recycle(buffer);
        watch();
    }
    rows_flush();
    watch();
}

/* Sends what CUPTI still has, then the end. False when a thread of ours goes on, which will say when it is done. */
static bool finish(void)
{
    uint64_t began = monotonic_ns();
    bool stuck = false;
    while (!taken_over && atomic_load(&closing) == CLOSING && monotonic_ns() - began < CLOSE_WAIT_S * SECOND_NS) {
        sleep_ms(1);
        drain();
    }
    int expected = CLOSING;
    if (!taken_over)
        stuck = atomic_compare_exchange_strong(&closing, &expected, ABANDONED);
    if (taken_over)
        ended.reason = END_PROFILER_TOOK_OVER;
    uint64_t closed = monotonic_ns();
    while (!taken_over && !stuck && pool_given() && monotonic_ns() - closed < RETURN_WAIT_MS * MS_NS) {
        sleep_ms(1);
        drain();
    }
    pool_close();
    drain();
    ended.unreturned = pool_given();
    if (ended.unreturned && !stuck && torch_state() == TORCH_UNKNOWN)
        ended.reason = END_PROFILER_TOOK_OVER;
    size_t dropped = 0;
    if (!taken_over && !stuck && !cupti.dropped(NULL, 0, &dropped))
        ended.dropped = dropped;
    ended.records = rows_totals().records;
    ended.bytes = rows_totals().bytes;
    ended.disabling_ns = stuck ? closed - began : disabling_ns;
    ended.flushing_ns = stuck ? 0 : flushing_ns;
    channel_send(&channel, CHUNK_END, &ended, sizeof ended, NULL);
    return !stuck && !(taken_over && start_thread(outlast_profiler, NULL));
}

static bool collect(void)
{
    struct wire_started started = {.kinds = order.kinds};
    size_t dropped_before;
    uint64_t began = monotonic_ns();
    if (!enable_all())
        return true;
    started.took_ns = monotonic_ns() - began;
    started.clocks = read_clocks();
    cupti.dropped(NULL, 0, &dropped_before); /* counts from here */
    ended = (struct wire_ended){.reason = 0};
    disabling_ns = flushing_ns = looked_at = 0;
    taken_over = false;
    ends_at = started.clocks.monotonic + order.window_ns;
    collecting = true;
    channel.while_waiting = watch;
    channel_send(&channel, CHUNK_STARTED, &started, sizeof started, NULL);
    watch();
    while (collecting) {
        for (int slept = 0; slept < LOOK_MS && torch_state() != TORCH_ACTIVE; slept += TORCH_LOOK_MS)
            sleep_ms(TORCH_LOOK_MS);
        drain();
    }
    return finish();
}

/* False when a thread of ours goes on. */
static bool take_window(void)
{
    if (refused_for_others() || refused_for_cupti())
        return true;
    struct wire_hello hello = {WIRE_VERSION, (uint32_t)getpid(), (uint32_t)syscall(SYS_gettid), cupti.version};
    channel_send(&channel, CHUNK_HELLO, &hello, sizeof hello, neighbours.cupti);
    /* Again: somebody may have come while we waited. */
    if (!hear_order() || !wait_for_start() || refused_for_others())
        return true;
    bool clean = true, memory = pool_open();
    if (memory && (memory = rows_open(&cupti, &channel, order.max_bytes))) {
        clean = collect();
        rows_close();
    }
    if (!memory)
        refuse(REFUSAL_MEMORY, 0, "there is no memory for buffers, or earlier windows' were never returned by CUPTI");
    pool_close();
    pool_release();
    return clean;
}

void serve_window(int commands_fd, int records_fd)
{
    if (atomic_exchange(&gputop_client_busy, 1)) {
        channel_turn_away(commands_fd, records_fd, REFUSAL_BUSY,
                          "a window is open in this process, or an earlier one hasn't ended: CUPTI hasn't returned, or a "
                          "profiler took over");
        return;
    }
    channel_open(&channel, commands_fd, records_fd);
    bool clean = take_window();
    /* Who sees the descriptors closed may come again at once; from then on `channel` is the next window's. */
    if (clean)
        atomic_store(&gputop_client_busy, 0);
    channel_close(commands_fd, records_fd);
}
