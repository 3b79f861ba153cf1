/* The buffers that CUPTI fills: a fixed number, kept apart from the target's heap. */
#ifndef GPUTOP_POOL_H
#define GPUTOP_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 64 MiB in all. CUPTI may keep a buffer for every thread that calls CUDA, and clears each one on that thread first:
 * smaller ones serve more threads and hold each up for less. */
enum { BUFFER_BYTES = 2 << 20, BUFFERS_IN_A_WINDOW = 32 };

/* Has buffers ready and hands them out from now on; false when there are too few. */
bool pool_open(void);

/* Hands out no more. */
void pool_close(void);

/* Gives back to the system what CUPTI doesn't hold. What it holds stays mapped and is never used again before it returns. */
void pool_release(void);

/* Buffers of this window that CUPTI holds. */
unsigned pool_given(void);

/* Buffers that somebody else had given to CUPTI, and CUPTI to us; none of them was touched. */
unsigned pool_foreign(void);

/* The next filled buffer, or NULL; `pool_recycle` when it has been read. */
uint8_t *pool_filled(size_t *valid_bytes);
void pool_recycle(uint8_t *buffer);

/* CUPTI's two callbacks. They run on the target's threads: no lock, no system call, no allocation. */
void pool_on_request(uint8_t **buffer, size_t *bytes, size_t *most_records);
void pool_on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes);

#endif
