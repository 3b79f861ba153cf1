/* The kinds of activity that are on, as far as they were turned on by us. */
#ifndef GPUTOP_KINDS_H
#define GPUTOP_KINDS_H

#include <stdint.h>

#include "cupti.h"

/* Turns on what is asked for (`wire_kinds`) and returns 0; else CUPTI's result code, and nothing stays on. */
int kinds_enable(const struct cupti *cupti, uint32_t kinds);

/* How many are on; `kinds_disable_last` turns one of them off. */
int kinds_on(void);
void kinds_disable_last(void);
void kinds_disable_all(void);

/* Has CUPTI record those calls again that we left out of kinds which are on: somebody else uses them now. */
void kinds_leave_nothing_out(void);

#endif
