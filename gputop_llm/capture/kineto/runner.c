/* Runs one Python source inside the target: on a thread of its own, in a namespace of its own, told by our pipe alone.
 *
 * The monitor sends a header, the source and its options; the source finds `commands_fd`, `records_fd` and `options` among
 * its globals and does all the talking from then on. What is refused here is said as a line of JSON. Both descriptors are
 * closed at the end, whatever the source did.
 */
#include "../native/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../native/client.h"
#include "../native/others.h"

enum { SCRATCH_BYTES_MOST = 1 << 20, SOURCE_BYTES_MOST = 256 << 10, OPTIONS_BYTES_MOST = 4 << 10, SOURCE_WITHIN_MS = 10000 };
enum { PY_FILE_INPUT = 257 }; /* Py_file_input, the same in every Python 3 */

/* The second is of a source that touches no profiler: it may run beside one. */
static const char magic[8] = "GPUTOPY1", magic_beside[8] = "GPUTOPB1";

struct header {
    char magic[8];
    uint32_t source_bytes, options_bytes;
};

/* Another copy of this library, or of the native client, looks for this by name: one profiler at a time. */
EXPORTED atomic_int gputop_client_busy;

static struct {
    int (*is_initialized)(void);
    int (*ensure)(void);
    void (*release)(int);
    void *(*builtins)(void);
    void *(*new_dict)(void);
    int (*set_item)(void *, const char *, void *);
    void *(*new_int)(long);
    void *(*new_text)(const char *, ssize_t);
    void *(*run)(const char *, int, void *, void *, void *);
    void (*clear)(void);
    void (*drop)(void *);
} python;

static bool python_find(void)
{
    struct {
        void *function;
        const char *name;
    } wanted[] = {
        {&python.is_initialized, "Py_IsInitialized"}, {&python.ensure, "PyGILState_Ensure"},
        {&python.release, "PyGILState_Release"},      {&python.builtins, "PyEval_GetBuiltins"},
        {&python.new_dict, "PyDict_New"},             {&python.set_item, "PyDict_SetItemString"},
        {&python.new_int, "PyLong_FromLong"},         {&python.new_text, "PyUnicode_FromStringAndSize"},
        {&python.run, "PyRun_StringFlags"},           {&python.clear, "PyErr_Clear"},
        {&python.drop, "Py_DecRef"},
    };
    for (size_t at = 0; at < sizeof wanted / sizeof *wanted; at++) {
        void *found = dlsym(RTLD_DEFAULT, wanted[at].name);
        if (!found)
            return false;
        memcpy(wanted[at].function, &found, sizeof found);
    }
    return true;
}

static void say(int records_fd, const char *why)
{
    char line[512];
    int length = snprintf(line, sizeof line, "{\"say\": \"refused\", \"why\": \"%s\"}\n", why);
    if (length > 0 && (size_t)length < sizeof line && write(records_fd, line, (size_t)length) < 0)
        return; /* nobody listens */
}

static bool take(int fd, void *into, size_t count, uint64_t end)
{
    unsigned char *rest = into;
    while (count) {
        uint64_t now = monotonic_ns();
        struct pollfd ready = {fd, POLLIN, 0};
        if (now >= end || poll(&ready, 1, (int)((end - now) / MS_NS) + 1) < 0)
            return false;
        ssize_t got = read(fd, rest, count);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (got > 0) {
            rest += got;
            count -= (size_t)got;
        }
    }
    return true;
}

/* Whether the monitor is still there: its end of the commands is open. */
static bool wanted_still(int commands_fd)
{
    struct pollfd state = {commands_fd, 0, 0};
    return poll(&state, 1, 0) == 0 || !(state.revents & (POLLHUP | POLLERR | POLLNVAL));
}

static void put(void *globals, const char *name, void *value)
{
    if (value) {
        python.set_item(globals, name, value);
        python.drop(value);
    }
}

static void run(const char *source, const char *options, size_t options_bytes, int commands_fd, int records_fd)
{
    int state = python.ensure();
    /* The lock may have been long in coming: whoever asked may have given up. */
    void *globals = wanted_still(commands_fd) ? python.new_dict() : NULL;
    if (globals) {
        python.set_item(globals, "__builtins__", python.builtins());
        put(globals, "__name__", python.new_text("gputop_llm_agent", 16));
        put(globals, "commands_fd", python.new_int(commands_fd));
        put(globals, "records_fd", python.new_int(records_fd));
        put(globals, "options", python.new_text(options, (ssize_t)options_bytes));
        void *result = python.run(source, PY_FILE_INPUT, globals, globals, NULL);
        if (result)
            python.drop(result);
        python.clear();
        python.drop(globals);
    }
    python.release(state);
}

static void serve(int commands_fd, int records_fd)
{
    static struct neighbours around;
    struct header header;
    uint64_t end = monotonic_ns() + SOURCE_WITHIN_MS * MS_NS;
    if (!take(commands_fd, &header, sizeof header, end))
        return;
    bool beside = !memcmp(header.magic, magic_beside, sizeof magic_beside);
    if (!beside && memcmp(header.magic, magic, sizeof magic))
        return;
    if (!header.source_bytes || header.source_bytes > SOURCE_BYTES_MOST || header.options_bytes > OPTIONS_BYTES_MOST)
        return;
    size_t size = (size_t)header.source_bytes + 1 + header.options_bytes + 1;
    char *text = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED)
        return;
    char *options = text + header.source_bytes + 1;
    if (take(commands_fd, text, header.source_bytes, end) && take(commands_fd, options, header.options_bytes, end)) {
        neighbours_look(&around);
        torch_find(&around);
        if (around.tool[0] && !beside)
            say(records_fd, "another profiler is loaded in the process, and CUPTI serves one at a time");
        else if (neighbours_busy(&around))
            say(records_fd, "a native window is open in the process");
        else if (!beside && torch_state() == TORCH_ACTIVE)
            say(records_fd, "torch.profiler is collecting in the process already");
        else if (!python_find() || !python.is_initialized())
            say(records_fd, "the process runs no Python that could be found");
        else
            run(text, options, header.options_bytes, commands_fd, records_fd);
    }
    munmap(text, size);
}

EXPORTED void gputop_client_serve(const struct gputop_call *given)
{
    struct gputop_call call;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_NAME, "gputop-llm");
    if (given->size != sizeof call)
        return;
    memcpy(&call, given, sizeof call);
    if (call.scratch_bytes && call.scratch_bytes <= SCRATCH_BYTES_MOST)
        munmap((void *)(uintptr_t)call.scratch_address, call.scratch_bytes);
    if (call.library_fd >= 0)
        close(call.library_fd);
    if (atomic_exchange(&gputop_client_busy, 1))
        say(call.records_fd, "another window of torch.profiler is being taken in the process");
    else {
        serve(call.commands_fd, call.records_fd);
        atomic_store(&gputop_client_busy, 0);
    }
    close(call.commands_fd);
    close(call.records_fd);
}
