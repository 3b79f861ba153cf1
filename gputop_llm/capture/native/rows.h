/* From CUPTI's records to the rows that are sent. */
#ifndef GPUTOP_ROWS_H
#define GPUTOP_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel.h"
#include "cupti.h"

struct rows_totals {
    uint64_t records, bytes; /* that CUPTI delivered */
    bool too_many;           /* rows were left out: they would have passed the bound on what is sent */
};

/* False when there is no memory. Rows go to `channel` until it has sent max_bytes. */
bool rows_open(const struct cupti *cupti, struct channel *channel, uint64_t max_bytes);
void rows_close(void);

/* Reads a buffer that CUPTI returned. */
void rows_take(uint8_t *buffer, size_t valid_bytes);

/* Sends what has been gathered. */
void rows_flush(void);

struct rows_totals rows_totals(void);

#endif
