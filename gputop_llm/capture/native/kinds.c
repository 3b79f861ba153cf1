#include "system.h"

#include "kinds.h"
#include "wire.h"

enum { ACTIVITIES_MOST = 6 };

static const struct cupti *cupti;
static int enabled[ACTIVITIES_MOST];
static int enabled_count;

/* Calls that only look something up. PyTorch makes a hundred thousand of them in a second, nine of ten calls in all; to
 * record one takes longer than the call, on the thread that launches kernels, and no analysis needs it. The numbers are
 * those of CUPTI's headers (cupti_runtime_cbid.h, cupti_driver_cbid.h), the same in each from CUDA 12.0 to 13.3. */
static const uint32_t runtime_lookups[] = {
    10,  /* cudaGetLastError */
    11,  /* cudaPeekAtLastError */
    17,  /* cudaGetDevice */
    151, /* cudaPointerGetAttributes */
    317, /* cudaStreamIsCapturing */
};
static const uint32_t driver_lookups[] = {
    16,  /* cuCtxGetDevice */
    304, /* cuCtxGetCurrent */
    310, /* cuPointerGetAttribute */
    392, /* cuDevicePrimaryCtxGetState */
    686, /* cuKernelGetAttribute */
    719, /* cuKernelGetName */
};

/* CUPTI before CUDA 12.5 can't, and records them. To turn the whole kind on or off overrides it. */
static void record_lookups(int activity, uint8_t on)
{
    if (activity == ACTIVITY_RUNTIME && cupti->enable_runtime_call)
        for (size_t at = 0; at < sizeof runtime_lookups / sizeof *runtime_lookups; at++)
            cupti->enable_runtime_call(runtime_lookups[at], on);
    if (activity == ACTIVITY_DRIVER && cupti->enable_driver_call)
        for (size_t at = 0; at < sizeof driver_lookups / sizeof *driver_lookups; at++)
            cupti->enable_driver_call(driver_lookups[at], on);
}

int kinds_enable(const struct cupti *the_cupti, uint32_t kinds)
{
    static const struct {
        uint32_t kind;
        int activity;
    } wanted[ACTIVITIES_MOST] = {
        {KINDS_KERNELS, ACTIVITY_KERNEL}, {KINDS_COPIES, ACTIVITY_COPY},     {KINDS_COPIES, ACTIVITY_PEER_COPY},
        {KINDS_MEMSETS, ACTIVITY_MEMSET}, {KINDS_RUNTIME, ACTIVITY_RUNTIME}, {KINDS_DRIVER, ACTIVITY_DRIVER},
    };
    cupti = the_cupti;
    enabled_count = 0;
    for (int at = 0; at < ACTIVITIES_MOST; at++) {
        if (!(kinds & wanted[at].kind))
            continue;
        int result = cupti->enable(wanted[at].activity);
        if (!result) {
            enabled[enabled_count++] = wanted[at].activity;
            record_lookups(wanted[at].activity, 0);
        } else if (wanted[at].activity != ACTIVITY_PEER_COPY) {
            kinds_disable_all();
            return result;
        }
    }
    return 0;
}

int kinds_on(void)
{
    return enabled_count;
}

void kinds_disable_last(void)
{
    cupti->disable(enabled[--enabled_count]);
}

void kinds_disable_all(void)
{
    while (enabled_count)
        kinds_disable_last();
}

void kinds_leave_nothing_out(void)
{
    for (int at = 0; at < enabled_count; at++)
        record_lookups(enabled[at], 1);
}
