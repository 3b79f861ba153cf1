/* What is sent and stored: the C side of gputop_llm/timeline/native_format.py, which says what each field is.
 * Little-endian x86-64 lays these out without padding; tests/capture/native compares every size and offset. */
#ifndef GPUTOP_WIRE_H
#define GPUTOP_WIRE_H

#include <stdint.h>

#define WIRE_MAGIC "GPUTOPW1"
#define WIRE_COMMAND_MAGIC "GPUTOPC1"
#define WIRE_VERSION 1u
#define WIRE_MAX_WINDOW_NS 60000000000ull
#define WIRE_MAX_WINDOW_BYTES (1ull << 30)

enum wire_chunk {
    CHUNK_HELLO = 1,
    CHUNK_REFUSED = 2,
    CHUNK_STARTED = 3,
    CHUNK_NAME = 4,
    CHUNK_KERNELS = 5,
    CHUNK_COPIES = 6,
    CHUNK_MEMSETS = 7,
    CHUNK_CALLS = 8,
    CHUNK_API_NAME = 9,
    CHUNK_END = 10,
};

enum wire_kinds { KINDS_KERNELS = 1, KINDS_COPIES = 2, KINDS_MEMSETS = 4, KINDS_RUNTIME = 8, KINDS_DRIVER = 16, KINDS_ALL = 31 };

enum wire_command { COMMAND_WINDOW = 1, COMMAND_STOP = 2 };

enum wire_end { END_TIME_UP = 0, END_STOPPED = 1, END_TOO_MANY_BYTES = 2, END_PROFILER_TOOK_OVER = 3 };

/* Why no window was taken; the sentence that goes with it is for people. */
enum wire_refusal {
    REFUSAL_BUSY = 1,          /* another window in this process, or one that hasn't ended cleanly yet */
    REFUSAL_NO_CUPTI = 2,      /* the process has no CUPTI, or several */
    REFUSAL_CUPTI_VERSION = 3, /* its records may be laid out otherwise */
    REFUSAL_OTHER_TOOL = 4,    /* another profiler is in the process */
    REFUSAL_PROFILING = 5,     /* the torch profiler is at work */
    REFUSAL_COMMAND = 6,       /* no command, or one beyond its bounds */
    REFUSAL_MEMORY = 7,        /* no buffers */
    REFUSAL_CUPTI = 8,         /* CUPTI said no; its result code stands beside the reason */
    REFUSAL_STOPPED = 9,       /* told to stop before the window began */
    REFUSAL_FILTER = 10,       /* a seccomp filter was added since this client began to listen: it might kill the process */
};

struct wire_header {
    uint32_t kind, bytes;
};

struct wire_hello {
    uint32_t version, pid, tid, cupti;
};

struct wire_refused {
    uint32_t reason, result;
};

struct wire_clocks {
    uint64_t cupti, realtime, monotonic, tsc;
};

struct wire_started {
    struct wire_clocks clocks;
    uint32_t kinds, unused;
    uint64_t took_ns;
};

struct wire_ended {
    struct wire_clocks clocks;
    uint32_t reason, unreturned;
    uint64_t dropped, records, bytes, disabling_ns, flushing_ns;
};

struct wire_command_packet {
    char magic[8];
    uint32_t command, kinds;
    uint64_t start_at, window_ns, max_bytes;
};

struct wire_kernel {
    uint64_t start, end, graph_node;
    uint32_t correlation, name, device, context, stream, graph, grid[3], block[3];
    uint32_t registers, shared_static_bytes, shared_dynamic_bytes, local_per_thread_bytes;
};

struct wire_copy {
    uint64_t start, end, bytes, graph_node;
    uint32_t correlation, device, context, stream, graph;
    uint8_t copy_kind, src_memory, dst_memory, flags;
};

struct wire_memset {
    uint64_t start, end, bytes, graph_node;
    uint32_t correlation, device, context, stream, graph, memory;
};

struct wire_call {
    uint64_t start, end;
    uint32_t correlation, thread, api;
    int32_t result;
};

_Static_assert(sizeof(struct wire_kernel) == 88 && sizeof(struct wire_copy) == 56, "rows have no padding");
_Static_assert(sizeof(struct wire_memset) == 56 && sizeof(struct wire_call) == 32, "rows have no padding");

#endif
