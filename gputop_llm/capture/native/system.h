/* The symbol versions that glibc 2.28 and older have too, and small helpers. Included by every file. */
#ifndef GPUTOP_SYSTEM_H
#define GPUTOP_SYSTEM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* glibc 2.34 moved these into libc.so.6 under a new version; the old ones are still there. */
#define OLD_SYMBOL(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
OLD_SYMBOL(dlopen);
OLD_SYMBOL(dlsym);
OLD_SYMBOL(dlclose);
OLD_SYMBOL(dl_iterate_phdr);
OLD_SYMBOL(pthread_create);
OLD_SYMBOL(pthread_attr_init);
OLD_SYMBOL(pthread_attr_destroy);
OLD_SYMBOL(pthread_attr_setdetachstate);

#define SECOND_NS 1000000000ull
#define MS_NS 1000000ull

static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static inline uint64_t monotonic_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static inline void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Runs a function on a detached thread of its own, which inherits our blocked signals; false when there is none. */
bool start_thread(void *(*function)(void *), void *argument);

#endif
