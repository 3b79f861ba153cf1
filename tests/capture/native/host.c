/* A program with a thread that serves windows, told what to do on standard input, one line at a time, and answering each.
 *
 *     host CLIENT LIBRARY...
 *
 * pipes                 makes two pipes; their four descriptors: commands read, write, records read, write
 * serve COMMANDS RECORDS  a thread enters the client as an injected one does
 * set NAME VALUE | get NAME [INDEX] | call NAME [NUMBER [NUMBER]]   in any of the libraries
 * listen                InitializeInjection
 * count                 resident KiB, descriptors, threads, mappings
 * close FD
 * filter kill|deny|only NUMBER...   system calls that end the program, that fail, or that alone do not end it
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct call {
    uint32_t size;
    int32_t commands, records, library;
    uint64_t scratch, scratch_bytes;
};

enum { MOST = 8 };
static void *libraries[MOST];
static void (*serve)(const struct call *);

static void *symbol(const char *name)
{
    void *found = NULL;
    for (int at = 0; at < MOST && !found; at++)
        found = libraries[at] ? dlsym(libraries[at], name) : NULL;
    if (!found) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}

static void *enter(void *page)
{
    serve(page); /* which unmaps it */
    return NULL;
}

static int entries(const char *path)
{
    int count = -3; /* ".", ".." and the directory's own descriptor */
    DIR *folder = opendir(path);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void count(void)
{
    char line[512];
    long resident = 0, size;
    int mappings = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld %ld", &size, &resident) != 2)
        exit(1);
    fclose(file);
    file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file))
        mappings++;
    fclose(file);
    printf("%ld %d %d %d\n", resident * 4, entries("/proc/self/fd"), entries("/proc/self/task") + 1, mappings);
}

/* For all threads that are there. */
static void filter(const char *kind, const char *numbers)
{
    struct sock_filter code[256] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    struct sock_fprog program = {1, code};
    int only = !strcmp(kind, "only");
    unsigned other = only ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW;
    unsigned listed = only ? SECCOMP_RET_ALLOW : !strcmp(kind, "kill") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    for (char *end; *numbers > '\n'; numbers = end) {
        unsigned number = (unsigned)strtol(numbers, &end, 10);
        code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
    }
    code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        exit(1);
}

static void handler(int signal_number)
{
    (void)signal_number;
    _exit(99); /* a signal of ours reached the program */
}

int main(int argc, char **argv)
{
    char line[256], name[128];
    long first = 0, second = 0;
    int descriptors[4];
    signal(SIGPIPE, handler);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int at = 1; at < argc && at <= MOST; at++) {
        libraries[at - 1] = dlopen(argv[at], at == 1 ? RTLD_NOW : RTLD_NOW | RTLD_GLOBAL);
        if (!libraries[at - 1]) {
            printf("%s\n", dlerror());
            return 1;
        }
    }
    serve = (void (*)(const struct call *))dlsym(libraries[0], "gputop_client_serve");
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        int fields = sscanf(line, "%*s %127s %ld %ld", name, &first, &second);
        if (!strncmp(line, "pipes", 5)) {
            if (pipe2(descriptors, O_CLOEXEC) || pipe2(descriptors + 2, O_CLOEXEC))
                return 1;
            printf("%d %d %d %d\n", descriptors[0], descriptors[1], descriptors[2], descriptors[3]);
        } else if (!strncmp(line, "serve", 5)) {
            struct call *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            int library = open("/dev/null", O_RDONLY);
            pthread_t thread;
            *page = (struct call){sizeof *page, atoi(name), (int)first, library, (uintptr_t)page, 4096};
            pthread_create(&thread, NULL, enter, page);
            pthread_detach(thread);
            printf("ok\n");
        } else if (!strncmp(line, "set", 3)) {
            *(volatile int *)symbol(name) = (int)first;
            printf("ok\n");
        } else if (!strncmp(line, "get", 3)) {
            printf("%ld\n", ((volatile long *)symbol(name))[fields > 1 ? first : 0]);
        } else if (!strncmp(line, "call", 4)) {
            printf("%d\n", ((int (*)(int, int))symbol(name))((int)first, (int)second));
        } else if (!strncmp(line, "listen", 6)) {
            printf("%d\n", ((int (*)(void))dlsym(libraries[0], "InitializeInjection"))());
        } else if (!strncmp(line, "count", 5)) {
            count();
        } else if (!strncmp(line, "filter", 6)) {
            filter(name, strstr(line, name) + strlen(name));
            printf("ok\n");
        } else if (!strncmp(line, "close", 5)) {
            close(atoi(name));
            printf("ok\n");
        } else {
            printf("what?\n");
        }
    }
    return 0;
}
