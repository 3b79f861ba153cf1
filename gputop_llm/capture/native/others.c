#include "system.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "others.h"

/* File names begin so. A program under Nsight Systems, Nsight Compute, Compute Sanitizer or cuda-gdb has one of the first
 * five; the rest are Triton's profiler and the profilers that subscribe to CUPTI for as long as the process lives. */
static const char *const tools[] = {
    "libToolsInjection", "libcuda-injection", "libInterceptorInjection", "libTreeLauncherTargetInjection",
    "libcudadebugger",   "libsanitizer",      "libproton",               "libcupti_trace_injection",
    "libparcagpu",       "libscorep_adapter", "libhpcrun",               "libTAU",
};

static const char injection_variable[] = "CUDA_INJECTION64_PATH=";

struct look {
    struct neighbours *found;
    char injection[PATH_BYTES]; /* file name; "": none */
};

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool starts(const char *text, const char *beginning)
{
    return !strncmp(text, beginning, strlen(beginning));
}

static bool keep(char *into, const char *text)
{
    size_t length = strnlen(text, PATH_BYTES);
    if (length == PATH_BYTES)
        return false;
    memcpy(into, text, length + 1);
    return true;
}

static bool holds(const struct dl_phdr_info *library, uintptr_t address)
{
    for (int at = 0; at < library->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[at];
        if (part->p_type == PT_LOAD && address - (library->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return true;
    }
    return false;
}

static int look_at(struct dl_phdr_info *library, size_t size, void *data)
{
    (void)size;
    struct look *look = data;
    struct neighbours *found = look->found;
    const char *path = library->dlpi_name ? library->dlpi_name : "";
    const char *name = file_name(path);
    if (holds(library, (uintptr_t)&neighbours_look))
        return 0;
    if (starts(name, "libcupti.so"))
        found->cuptis += keep(found->cupti, path);
    else if (starts(name, "libcuda.so"))
        found->has_driver = true;
    else if (starts(name, "libtorch_cpu.so"))
        keep(found->torch, path);
    /* The name of an injected copy is the descriptor that it was loaded from. */
    else if (starts(name, "libgputop_client") || (starts(path, "/proc/") && strstr(path, "/fd/")))
        found->client_count += found->client_count < CLIENTS_MOST && keep(found->clients[found->client_count], path);
    else if (look->injection[0] && !strcmp(name, look->injection))
        keep(found->tool, name);
    for (size_t at = 0; at < sizeof tools / sizeof *tools; at++)
        if (starts(name, tools[at]))
            keep(found->tool, name);
    return 0;
}

/* The file name of what CUDA was told to load, from the environment as it was at the start: getenv isn't safe beside a
 * thread that sets a variable. */
static void read_injection(char *name)
{
    char text[sizeof injection_variable - 1 + PATH_BYTES];
    char piece[4096];
    size_t length = 0;
    ssize_t got;
    int file = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
    name[0] = 0;
    while (file >= 0 && !name[0] && (got = read(file, piece, sizeof piece)) > 0) {
        for (ssize_t at = 0; at < got && !name[0]; at++) {
            if (length < sizeof text)
                text[length++] = piece[at];
            if (piece[at])
                continue;
            text[sizeof text - 1] = 0;
            if (length > sizeof injection_variable && starts(text, injection_variable))
                keep(name, file_name(text + sizeof injection_variable - 1));
            length = 0;
        }
    }
    if (file >= 0)
        close(file);
}

void neighbours_look(struct neighbours *found)
{
    static struct look look;
    memset(found, 0, sizeof *found);
    look.found = found;
    read_injection(look.injection);
    dl_iterate_phdr(look_at, &look);
}

bool neighbours_busy(const struct neighbours *found)
{
    bool busy = false;
    for (int at = 0; at < found->client_count; at++) {
        void *other = dlopen(found->clients[at], RTLD_NOW | RTLD_NOLOAD);
        if (!other)
            continue;
        const atomic_int *flag = dlsym(other, "gputop_client_busy");
        busy |= flag && flag != &gputop_client_busy && atomic_load(flag);
        dlclose(other);
    }
    return busy;
}

/* libkineto, the torch profiler's engine: `api()` returns an object whose second word points to the profiler, a proxy that
 * has a controller once the profiler has been used. */
static struct {
    void **(*api)(void);
    bool (*is_active)(void *proxy);
    const void *vtable;
    size_t controller_at;
    bool present;
} kineto;

/* Where the proxy keeps its controller: `isActive` begins by loading it (mov rax or rdi, [rdi + offset]) from 1 byte's
 * offset, seen in torch 2.4 to 2.13. It must not be called while that is null. 0: not the code that is known. */
static size_t controller_offset(const uint8_t *code)
{
    static const uint8_t landing_pad[] = {0xf3, 0x0f, 0x1e, 0xfa}, load[] = {0x48, 0x8b};
    enum { REGISTER_FROM_RDI = 0x47, REGISTER_BITS = 0x38 };
    if (!memcmp(code, landing_pad, sizeof landing_pad))
        code += sizeof landing_pad;
    if (memcmp(code, load, sizeof load) || (code[2] & ~REGISTER_BITS) != REGISTER_FROM_RDI)
        return 0;
    return code[3];
}

void torch_find(const struct neighbours *found)
{
    memset(&kineto, 0, sizeof kineto);
    kineto.present = found->torch[0];
    void *torch = kineto.present ? dlopen(found->torch, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!torch)
        return;
    void *api = dlsym(torch, "_ZN9libkineto3apiEv");
    void *is_active = dlsym(torch, "_ZN9libkineto21ActivityProfilerProxy8isActiveEv");
    kineto.vtable = dlsym(torch, "_ZTVN9libkineto21ActivityProfilerProxyE");
    kineto.controller_at = is_active ? controller_offset(is_active) : 0;
    if (kineto.controller_at && kineto.vtable) {
        memcpy(&kineto.api, &api, sizeof api);
        memcpy(&kineto.is_active, &is_active, sizeof is_active);
    }
    dlclose(torch); /* torch is never unloaded */
}

enum torch_profiler torch_state(void)
{
    if (!kineto.present)
        return TORCH_ABSENT;
    if (!kineto.api)
        return TORCH_UNKNOWN;
    void **proxy = kineto.api()[1];
    if (!proxy)
        return TORCH_IDLE;
    /* A vtable begins with two words that an object's pointer skips. */
    if (*proxy != (const void *const *)kineto.vtable + 2)
        return TORCH_UNKNOWN;
    void *controller = *(void **)((uint8_t *)proxy + kineto.controller_at);
    return controller && kineto.is_active(proxy) ? TORCH_ACTIVE : TORCH_IDLE;
}
