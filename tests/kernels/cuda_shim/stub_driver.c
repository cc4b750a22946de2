/* A stand-in for libcuda.so.1: says what the environment tells it to, and has no device that works. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return (void)flags, setting("STUB_INIT", 0); }

int cuDriverGetVersion(int *version)
{
    *version = setting("STUB_VERSION", 13090);
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = setting("STUB_DEVICES", 0);
    return setting("STUB_INIT", 0);
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < setting("STUB_DEVICES", 0) ? 0 : 101;
}

/* The parent's UUID is 16 times 0xa0 + ordinal; a slice's, which only the second form tells, 16 times 0xb0 + ordinal. */
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0xa0 + device, 16);
    return 0;
}

#ifndef STUB_OLD
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    memset(uuid, 0xb0 + device, 16);
    return 0;
}
#endif

/* Prints what it is given; the kernel is taken to have a pointer, a 64-bit integer and a float for parameters. */
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    printf("%p grid %u %u %u block %u %u %u shared %u stream %p extra %d: %p %lld %g\n", function, gx, gy, gz, bx, by, bz,
           shared, stream, extra != NULL, *(void **)parameters[0], *(long long *)parameters[1], *(float *)parameters[2]);
    fflush(stdout);
    return 0;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared)
{
    (void)function;
    *blocks = shared ? 0 : 2048 / threads;
    return 0;
}
