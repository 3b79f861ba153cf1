/* The library inside the target: one bounded window of CUPTI's activity records at a time, sent to the monitor.
 *
 * It runs on a thread of its own, uses the target's own CUPTI, and touches nothing else: no Python, no allocator of the
 * target, no file. docs/native-client.md says what it does, what it never does, and what stays.
 */
#ifndef GPUTOP_CLIENT_H
#define GPUTOP_CLIENT_H

#include <stdatomic.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* What the injector leaves in its scratch page. */
struct gputop_call {
    uint32_t size; /* of this structure */
    int32_t commands_fd, records_fd, library_fd; /* library_fd may be -1 */
    uint64_t scratch_address, scratch_bytes;     /* the page itself: unmapped here; 0 bytes: keep it */
};

/* 1 while a window is open, or hasn't ended cleanly: two copies of this library may be in one process. */
extern EXPORTED atomic_int gputop_client_busy;

/* Serves one window on the calling thread, then closes the descriptors. */
EXPORTED void gputop_client_serve(const struct gputop_call *call);

/* CUDA calls this when CUDA_INJECTION64_PATH names the library: listens for monitors on a socket. Always 1. */
EXPORTED int InitializeInjection(void);

/* The same for one connection (window.c). */
void serve_window(int commands_fd, int records_fd);

/* Blocks all signals for this thread: none of the target's handlers runs on it, and a closed pipe is an error code. */
void block_signals(void);

#endif
