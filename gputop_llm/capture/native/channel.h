/* The two descriptors to the monitor: commands come in, chunks go out. Nothing here waits without a limit. */
#ifndef GPUTOP_CHANNEL_H
#define GPUTOP_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

enum { TEXT_BYTES_MOST = 16 << 10 };

enum heard { HEARD_NOTHING, HEARD_COMMAND, HEARD_END };

struct channel {
    int commands_fd, records_fd;
    bool gone;           /* nobody takes what is sent: nothing more is */
    uint64_t sent_bytes; /* magic and headers included */
    void (*while_waiting)(void);
    size_t command_bytes;
    unsigned char command[sizeof(struct wire_command_packet)];
    unsigned char chunk[sizeof(struct wire_header) + sizeof(struct wire_ended) + TEXT_BYTES_MOST];
};

void channel_open(struct channel *channel, int commands_fd, int records_fd);
void channel_close(int commands_fd, int records_fd);

/* Says why no window is taken, on a channel of its own beside the one that may be in use, and closes it. */
void channel_turn_away(int commands_fd, int records_fd, enum wire_refusal reason, const char *sentence);

/* Writes all of it. A reader who takes nothing for STALL_MS, or is gone, is `gone` from then on. */
void channel_write(struct channel *channel, const void *bytes, size_t count);

/* One chunk: a fixed part, then text (NULL: none), which is cut at TEXT_BYTES_MOST. */
void channel_send(struct channel *channel, enum wire_chunk kind, const void *fixed, size_t count, const char *text);

/* Waits up to wait_ms for a command. HEARD_END: the monitor has closed, or sent what is no command. */
enum heard channel_hear(struct channel *channel, int wait_ms, struct wire_command_packet *command);

#endif
