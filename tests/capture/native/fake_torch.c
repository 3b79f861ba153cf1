/* A stand-in for libtorch_cpu.so: what the torch profiler shows of itself, and a session of it, as a client of CUPTI. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { BUFFERS = 4096, BYTES = 1 << 20 };

struct controller {
    atomic_int active;
};

struct proxy {
    const void *vtable;
    bool cpu_only;
    void *loader;
    struct controller *controller;
};
_Static_assert(offsetof(struct proxy, controller) == 24, "as the proxy's isActive below has it");

EXPORT const void *_ZTVN9libkineto21ActivityProfilerProxyE[6];
static struct controller controller;
static struct proxy proxy;
static struct {
    void *loader;
    struct proxy *profiler;
} library;

EXPORT void *_ZN9libkineto3apiEv(void)
{
    return &library;
}

/* Reads through the pointer without asking: as in the real one, it may be called only once there is a controller. */
EXPORT bool fake_controller_is_active(struct controller *which)
{
    return which->active;
}

#ifdef UNKNOWN_CODE
#define PROLOGUE "push %rbx\n mov %rdi, %rbx\n pop %rbx\n"
#else
#define PROLOGUE ""
#endif
__asm__(".text\n.globl _ZN9libkineto21ActivityProfilerProxy8isActiveEv\n"
        ".type _ZN9libkineto21ActivityProfilerProxy8isActiveEv, @function\n"
        "_ZN9libkineto21ActivityProfilerProxy8isActiveEv:\n" PROLOGUE
        "mov 24(%rdi), %rdi\n jmp fake_controller_is_active@PLT\n");

/* 1: registered (import torch); 2: has been used; -1: an object of another class. */
EXPORT void fake_torch_be(int what)
{
    proxy.vtable = what < 0 ? (const void *)&library : &_ZTVN9libkineto21ActivityProfilerProxyE[2];
    proxy.controller = what == 1 ? NULL : &controller;
    library.profiler = &proxy;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *given[BUFFERS];
EXPORT atomic_long fake_torch_unknown, fake_torch_lost, fake_torch_records;

static void *of_cupti(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

static void on_request(uint8_t **buffer, size_t *size, size_t *most)
{
    pthread_mutex_lock(&lock);
    *buffer = malloc(BYTES);
    *size = BYTES;
    *most = 0;
    for (int at = 0; at < BUFFERS; at++)
        if (!given[at]) {
            given[at] = *buffer;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    int (*next)(uint8_t *, size_t, uint8_t **) = of_cupti("cuptiActivityGetNextRecord");
    bool known = false;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < BUFFERS && !known; at++)
        if (given[at] == buffer) {
            known = true;
            given[at] = NULL;
        }
    pthread_mutex_unlock(&lock);
    if (!known) {
        fake_torch_unknown++;
        return;
    }
    for (uint8_t *record = NULL; !next(buffer, valid, &record);)
        fake_torch_records++;
    free(buffer);
}

static const int kinds[] = {10, 1, 2};

EXPORT void fake_torch_start(void)
{
    int (*registered)(void *, void *) = of_cupti("cuptiActivityRegisterCallbacks");
    int (*enable)(int) = of_cupti("cuptiActivityEnable");
    fake_torch_be(2);
    controller.active = 1;
    registered(on_request, on_complete);
    for (int at = 0; at < 3; at++)
        enable(kinds[at]);
}

EXPORT void fake_torch_stop(void)
{
    int (*flush)(uint32_t) = of_cupti("cuptiActivityFlushAll");
    int (*disable)(int) = of_cupti("cuptiActivityDisable");
    for (int at = 0; at < 3; at++)
        disable(kinds[at]);
    flush(1);
    for (int at = 0; at < BUFFERS; at++)
        fake_torch_lost += given[at] != NULL; /* CUPTI returned it to somebody else */
    controller.active = 0;
}
