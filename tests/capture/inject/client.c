/* A client for tests: says hello on the records pipe, echoes what it is told, and ends when the commands end. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

struct gputop_call {
    uint32_t size;
    int32_t commands_fd, records_fd, library_fd;
    uint64_t scratch_address, scratch_bytes;
};

void gputop_client_serve(const struct gputop_call *call)
{
    struct gputop_call mine = *call;
    char told[64];
    ssize_t count;
    munmap((void *)mine.scratch_address, mine.scratch_bytes);
    if (mine.library_fd >= 0) close(mine.library_fd);
    if (write(mine.records_fd, HELLO, sizeof HELLO - 1) > 0)
        while ((count = read(mine.commands_fd, told, sizeof told)) > 0)
            if (write(mine.records_fd, told, (size_t)count) < 0) break;
    close(mine.commands_fd);
    close(mine.records_fd);
}
