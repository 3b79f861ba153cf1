/* What is used of CUPTI, NVIDIA's tracing library, whose functions are found at run time in the copy that the target has.
 * The offsets are those of its records from CUDA 12.0 to 13.3: later versions only made the records longer. */
#ifndef GPUTOP_CUPTI_H
#define GPUTOP_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CUPTI counted its versions by one up to CUDA 12.9, and numbers them like CUDA since. */
#define CUPTI_OLDEST_12 18u
#define CUPTI_NEWEST_12 28u
#define CUPTI_OLDEST_13 130000u
#define CUPTI_NEWEST_13 130399u

/* The only kinds of activity that this client ever turns on. */
enum activity {
    ACTIVITY_COPY = 1,
    ACTIVITY_MEMSET = 2,
    ACTIVITY_DRIVER = 4,
    ACTIVITY_RUNTIME = 5,
    ACTIVITY_KERNEL = 10,
    ACTIVITY_PEER_COPY = 22,
};

enum callback_domain { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2 };

/* A whole flush returns the buffers all of whose records are complete, a forced one all buffers. */
enum flush { FLUSH_WHOLE = 0, FLUSH_FORCED = 1 };

typedef void on_request_function(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void on_complete_function(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes);

/* Each returns 0 or a CUPTI result code. */
struct cupti {
    int (*get_version)(uint32_t *version);
    int (*get_timestamp)(uint64_t *ns);
    int (*result_text)(int result, const char **text);
    int (*callback_name)(int domain, uint32_t callback, const char **name);
    int (*register_callbacks)(on_request_function *request, on_complete_function *complete);
    int (*enable)(int activity);
    int (*disable)(int activity);
    int (*flush_all)(uint32_t flag);
    int (*dropped)(void *context, uint32_t stream, size_t *count);
    int (*next_record)(uint8_t *buffer, size_t valid_bytes, uint8_t **record);
    /* For a single call of the API, by its callback number; NULL before CUDA 12.5. */
    int (*enable_runtime_call)(uint32_t callback, uint8_t on);
    int (*enable_driver_call)(uint32_t callback, uint8_t on);
    uint32_t version;
};

/* Fills in the functions of a mapped CUPTI; false when one is missing that each version has. */
bool cupti_resolve(struct cupti *cupti, void *library);

/* Byte offsets; `*_BYTES` is how much of a record must be there. */
enum {
    RECORD_KIND = 0,

    KERNEL_REGISTERS = 6, /* 16 bits */
    KERNEL_START = 16,
    KERNEL_END = 24,
    KERNEL_DEVICE = 40,
    KERNEL_CONTEXT = 44,
    KERNEL_STREAM = 48,
    KERNEL_GRID = 52,
    KERNEL_BLOCK = 64,
    KERNEL_SHARED_STATIC = 76,
    KERNEL_SHARED_DYNAMIC = 80,
    KERNEL_LOCAL = 84,
    KERNEL_CORRELATION = 92,
    KERNEL_NAME = 104,
    KERNEL_GRAPH_NODE = 144,
    KERNEL_GRAPH = 156,
    KERNEL_BYTES = 160,

    COPY_KIND = 4, /* four single bytes: kind, source memory, destination memory, flags */
    COPY_SIZE = 8,
    COPY_START = 16,
    COPY_END = 24,
    COPY_DEVICE = 32,
    COPY_CONTEXT = 36,
    COPY_STREAM = 40,
    COPY_CORRELATION = 44,
    COPY_GRAPH_NODE = 64,
    COPY_GRAPH = 72,
    COPY_BYTES = 76,

    PEER_COPY_CORRELATION = 60, /* before it as in a copy */
    PEER_COPY_GRAPH_NODE = 72,
    PEER_COPY_GRAPH = 80,
    PEER_COPY_BYTES = 84,

    MEMSET_SIZE = 8,
    MEMSET_START = 16,
    MEMSET_END = 24,
    MEMSET_DEVICE = 32,
    MEMSET_CONTEXT = 36,
    MEMSET_STREAM = 40,
    MEMSET_CORRELATION = 44,
    MEMSET_MEMORY = 50, /* 16 bits */
    MEMSET_GRAPH_NODE = 64,
    MEMSET_GRAPH = 72,
    MEMSET_BYTES = 76,

    CALL_CALLBACK = 4,
    CALL_START = 8,
    CALL_END = 16,
    CALL_THREAD = 28,
    CALL_CORRELATION = 32,
    CALL_RESULT = 36,
    CALL_BYTES = 40,
};

#endif
