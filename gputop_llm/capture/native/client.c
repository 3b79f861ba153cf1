#include "system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "channel.h"
#include "client.h"

enum { SCRATCH_BYTES_MOST = 1 << 20, UNMAPPED_UID = 65534, STAT_START_TIME = 22 };

static const char digits[] = "0123456789";
static char filters_at_first[16];

void block_signals(void)
{
    /* sigprocmask is this thread's alone on Linux, and leaves out the signals that glibc itself needs. */
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
}

bool start_thread(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool started = !pthread_create(&thread, &detached, function, argument);
    pthread_attr_destroy(&detached);
    return started;
}

void gputop_client_serve(const struct gputop_call *given)
{
    struct gputop_call call;
    block_signals();
    prctl(PR_SET_NAME, "gputop-llm");
    if (given->size != sizeof call)
        return;
    memcpy(&call, given, sizeof call);
    if (call.scratch_bytes && call.scratch_bytes <= SCRATCH_BYTES_MOST)
        munmap((void *)(uintptr_t)call.scratch_address, call.scratch_bytes);
    if (call.library_fd >= 0)
        close(call.library_fd);
    serve_window(call.commands_fd, call.records_fd);
}

/* The beginning of a small file; "": unreadable. */
static void read_file(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, size - 1);
    text[got > 0 ? got : 0] = 0;
    if (file >= 0)
        close(file);
}

/* Field 22 of /proc/PID/stat: with the PID it names one process and no later one. "": unreadable. */
static void read_start_time(const char *pid, char *text, size_t size)
{
    char path[32], stat[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    read_file(path, stat, sizeof stat);
    text[0] = 0;
    char *at = strrchr(stat, ')'); /* ends field 2, which may hold anything */
    for (int field = 2; at && field < STAT_START_TIME; field++)
        at = strchr(at + 1, ' ');
    if (at && strspn(at + 1, digits) < size)
        snprintf(text, size, "%.*s", (int)strspn(at + 1, digits), at + 1);
}

/* How many seccomp filters the calling thread has, as the kernel writes it; before Linux 5.9 only whether ("2"). */
static void read_filters(char *text, size_t size)
{
    static const char count[] = "\nSeccomp_filters:\t", mode[] = "\nSeccomp:\t";
    char status[8192];
    read_file("/proc/thread-self/status", status, sizeof status);
    const char *at = strstr(status, count);
    at = at ? at + sizeof count - 1 : strstr(status, mode) ? strstr(status, mode) + sizeof mode - 1 : "";
    snprintf(text, size, "%.*s", (int)strspn(at, digits), at);
}

/* A folder of ours alone: made, or found so. */
static bool private_folder(const char *path)
{
    struct stat found;
    mkdir(path, 0700);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    /* Called by number: the library's own fstat has a newer symbol version. */
    bool ours = folder >= 0 && !syscall(SYS_fstat, folder, &found) && found.st_uid == geteuid() && !(found.st_mode & 077);
    if (folder >= 0)
        close(folder);
    return ours;
}

static bool nobody_listens(const struct sockaddr_un *address)
{
    int asking = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool refused = asking >= 0 && connect(asking, (const struct sockaddr *)address, sizeof *address) && errno == ECONNREFUSED;
    if (asking >= 0)
        close(asking);
    return refused;
}

/* Removes the sockets of processes that have ended. That one isn't seen is not enough (it may be in another PID namespace),
 * nor that nobody listens (it may just be starting). */
static void remove_dead(const char *folder)
{
    struct dirent *entry;
    DIR *listing = opendir(folder);
    while (listing && (entry = readdir(listing))) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char pid[16], start_time[24];
        const char *name = entry->d_name, *dash = name + strspn(name, digits);
        size_t length = *dash == '-' ? strspn(dash + 1, digits) : 0;
        if (!length || strcmp(dash + 1 + length, ".sock"))
            continue;
        snprintf(pid, sizeof pid, "%.*s", (int)(dash - name), name);
        read_start_time(pid, start_time, sizeof start_time);
        bool seen = strlen(start_time) == length && !strncmp(start_time, dash + 1, length);
        int bytes = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder, name);
        if (!seen && bytes > 0 && (size_t)bytes < sizeof address.sun_path && nobody_listens(&address))
            unlink(address.sun_path);
    }
    if (listing)
        closedir(listing);
}

static int listen_in(const char *folder, const char *start_time)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%d-%s.sock", folder, (int)getpid(), start_time);
    if (length < 0 || (size_t)length >= sizeof address.sun_path || !private_folder(folder))
        return -1;
    remove_dead(folder);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return -1;
    /* Linux makes the socket's file with the mode of the socket: no moment in which it is wider. */
    bool listening = !fchmod(listener, 0600) && !bind(listener, (struct sockaddr *)&address, sizeof address) &&
                     !listen(listener, 1);
    if (listening)
        return listener;
    close(listener);
    return -1;
}

/* The same two places where connect_prepared looks (prepared.py). */
static int open_listener(void)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path], start_time[24];
    const char *runtime = getenv("XDG_RUNTIME_DIR"); /* CUDA is just being initialised, on the caller's thread */
    int listener = -1;
    read_start_time("self", start_time, sizeof start_time);
    if (!start_time[0])
        return -1;
    if (runtime && runtime[0] == '/' &&
        (size_t)snprintf(folder, sizeof folder, "%s/gputop-llm", runtime) < sizeof folder)
        listener = listen_in(folder, start_time);
    if (listener < 0) {
        snprintf(folder, sizeof folder, "/tmp/gputop-llm-%u", (unsigned)geteuid());
        listener = listen_in(folder, start_time);
    }
    return listener;
}

static bool trusted(int connection)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return false;
    return peer.uid != UNMAPPED_UID && (peer.uid == geteuid() || peer.uid == 0);
}

static void *serve_socket(void *listener)
{
    block_signals();
    prctl(PR_SET_NAME, "gputop-llm");
    for (;;) {
        char filters[sizeof filters_at_first];
        int connection = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            sleep_ms(1000); /* out of descriptors, say: the target's trouble, not to be made worse */
            continue;
        }
        read_filters(filters, sizeof filters);
        if (!trusted(connection))
            close(connection);
        else if (strcmp(filters, filters_at_first))
            channel_turn_away(connection, connection, REFUSAL_FILTER,
                              "the process has added a seccomp filter since it started, which might kill it for a window");
        else
            serve_window(connection, connection);
    }
    return NULL;
}

int InitializeInjection(void)
{
    static atomic_bool once;
    /* Whatever fails here, the program runs on as if it had been started without us. */
    if (!atomic_exchange(&once, true)) {
        read_filters(filters_at_first, sizeof filters_at_first);
        int listener = open_listener();
        if (listener >= 0 && !start_thread(serve_socket, (void *)(intptr_t)listener))
            close(listener);
    }
    return 1;
}
