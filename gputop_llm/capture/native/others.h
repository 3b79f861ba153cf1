/* Who else is in this process: its CUPTI, its torch profiler, other profilers, other copies of this client. */
#ifndef GPUTOP_OTHERS_H
#define GPUTOP_OTHERS_H

#include <stdbool.h>

enum { PATH_BYTES = 1024, CLIENTS_MOST = 8 };

struct neighbours {
    char cupti[PATH_BYTES]; /* as the loader calls it; "": not mapped */
    char torch[PATH_BYTES];
    char tool[PATH_BYTES]; /* file name of another profiler's library */
    char clients[CLIENTS_MOST][PATH_BYTES];
    int cuptis, client_count;
    bool has_driver; /* CUDA's, libcuda.so */
};

enum torch_profiler { TORCH_ABSENT, TORCH_IDLE, TORCH_ACTIVE, TORCH_UNKNOWN };

/* Looks at what is mapped. */
void neighbours_look(struct neighbours *found);

/* Whether another copy of this client (an older one, or the one that CUDA loaded) is at work. */
bool neighbours_busy(const struct neighbours *found);

/* What the torch profiler does; needs a `neighbours_look` before. Cheap: two calls and three reads. */
void torch_find(const struct neighbours *found);
enum torch_profiler torch_state(void);

#endif
