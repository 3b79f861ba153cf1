/* CUDA's runtime and driver as far as a range of the profiler needs them. Device 1 has a context. Each call goes to the
 * file FAKE_CUDA_LOG as a line; under an nsys that has NVTX injected, the range is one of NVTX's, too ("gate"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* As in NVTX's own headers: what an injected tool fills in. */
enum { EXPORT_CALLBACKS = 1, EXPORT_VERSION = 3, NVTX_VERSION = 3 };
enum { CORE = 1, MODULES = 8, RANGE_START_A = 5, RANGE_END = 7, FUNCTIONS = 32, CORE_FUNCTIONS = 16 };
typedef void (*function)(void);
static function functions[MODULES][FUNCTIONS];
static function *tables[MODULES][FUNCTIONS + 1];
static uint64_t range;

static int module(unsigned which, function ***out, unsigned *count)
{
    if (which >= MODULES)
        return 0;
    for (int at = 1; at < FUNCTIONS; at++)
        tables[which][at] = &functions[which][at];
    *out = tables[which];
    *count = CORE_FUNCTIONS;
    return 1;
}

static void used_version(uint32_t version)
{
    (void)version;
}

static struct {
    size_t size;
    int (*module)(unsigned, function ***, unsigned *);
} callbacks = {sizeof callbacks, module};
static struct {
    size_t size;
    uint32_t version, reserved;
    void (*used)(uint32_t);
} about = {sizeof about, NVTX_VERSION, 0, used_version};

static const void *export(uint32_t which)
{
    return which == EXPORT_CALLBACKS ? (void *)&callbacks : which == EXPORT_VERSION ? (void *)&about : NULL;
}

static void inject(void)
{
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *tool = path ? dlopen(path, RTLD_NOW) : NULL;
    int (*begin)(const void *(*)(uint32_t)) = tool ? (int (*)(const void *(*)(uint32_t)))dlsym(tool, "InitializeInjectionNvtx2") : NULL;
    if (begin)
        begin(export);
}

static int note(const char *what, int value)
{
    char line[128];
    struct timespec now;
    const char *path = getenv("FAKE_CUDA_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line, "%s %d %lld\n", what, value, now.tv_sec * 1000000000LL + now.tv_nsec);
    if (file >= 0 && write(file, line, (size_t)length) == length)
        close(file);
    const char *fails = getenv("FAKE_CUDA_FAILS");
    return fails && !strcmp(fails, what) ? 999 : 0;
}

int cuDeviceGetCount(int *count)
{
    *count = 2;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = device == 1 && !getenv("FAKE_CUDA_IDLE");
    return 0;
}

int cudaSetDevice(int device)
{
    return note("cudaSetDevice", device);
}

int cudaProfilerStart(void)
{
    int failed = note("cudaProfilerStart", 0);
    inject();
    if (functions[CORE][RANGE_START_A] && !failed)
        range = ((uint64_t(*)(const char *))functions[CORE][RANGE_START_A])("gate");
    return failed;
}

int cudaProfilerStop(void)
{
    if (functions[CORE][RANGE_END])
        ((void (*)(uint64_t))functions[CORE][RANGE_END])(range);
    return note("cudaProfilerStop", 0);
}
