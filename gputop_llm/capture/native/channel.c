#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "channel.h"

enum { STALL_MS = 3000, LOOK_MS = 10 };

void channel_open(struct channel *channel, int commands_fd, int records_fd)
{
    memset(channel, 0, offsetof(struct channel, chunk));
    channel->commands_fd = commands_fd;
    channel->records_fd = records_fd;
    fcntl(commands_fd, F_SETFL, fcntl(commands_fd, F_GETFL) | O_NONBLOCK);
    fcntl(records_fd, F_SETFL, fcntl(records_fd, F_GETFL) | O_NONBLOCK);
    channel_write(channel, WIRE_MAGIC, sizeof WIRE_MAGIC - 1);
}

void channel_close(int commands_fd, int records_fd)
{
    close(commands_fd);
    if (records_fd != commands_fd)
        close(records_fd);
}

void channel_write(struct channel *channel, const void *bytes, size_t count)
{
    const unsigned char *rest = bytes;
    uint64_t moved_at = monotonic_ns();
    while (count && !channel->gone) {
        ssize_t done = write(channel->records_fd, rest, count);
        if (done > 0) {
            rest += done;
            count -= (size_t)done;
            channel->sent_bytes += (uint64_t)done;
            moved_at = monotonic_ns();
            continue;
        }
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            channel->gone = true;
        else if (monotonic_ns() - moved_at > STALL_MS * MS_NS)
            channel->gone = true;
        else {
            struct pollfd ready = {channel->records_fd, POLLOUT, 0};
            poll(&ready, 1, LOOK_MS);
            if (channel->while_waiting)
                channel->while_waiting();
        }
    }
}

void channel_send(struct channel *channel, enum wire_chunk kind, const void *fixed, size_t count, const char *text)
{
    size_t length = text ? strnlen(text, TEXT_BYTES_MOST) : 0;
    struct wire_header header = {kind, (uint32_t)(count + length)};
    memcpy(channel->chunk, &header, sizeof header);
    memcpy(channel->chunk + sizeof header, fixed, count);
    if (length)
        memcpy(channel->chunk + sizeof header + count, text, length);
    channel_write(channel, channel->chunk, sizeof header + count + length);
}

void channel_turn_away(int commands_fd, int records_fd, enum wire_refusal reason, const char *sentence)
{
    struct channel channel;
    struct wire_refused refused = {reason, 0};
    channel_open(&channel, commands_fd, records_fd);
    channel_send(&channel, CHUNK_REFUSED, &refused, sizeof refused, sentence);
    channel_close(commands_fd, records_fd);
}

enum heard channel_hear(struct channel *channel, int wait_ms, struct wire_command_packet *command)
{
    uint64_t end = monotonic_ns() + (uint64_t)wait_ms * MS_NS;
    for (;;) {
        size_t missing = sizeof channel->command - channel->command_bytes;
        ssize_t done = read(channel->commands_fd, channel->command + channel->command_bytes, missing);
        if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
            return HEARD_END;
        if (done > 0)
            channel->command_bytes += (size_t)done;
        if (channel->command_bytes == sizeof channel->command) {
            channel->command_bytes = 0;
            memcpy(command, channel->command, sizeof *command);
            bool ours = !memcmp(command->magic, WIRE_COMMAND_MAGIC, sizeof command->magic);
            return ours ? HEARD_COMMAND : HEARD_END;
        }
        uint64_t now = monotonic_ns();
        if (now >= end)
            return HEARD_NOTHING;
        struct pollfd ready = {channel->commands_fd, POLLIN, 0};
        poll(&ready, 1, (int)((end - now + MS_NS - 1) / MS_NS));
    }
}
