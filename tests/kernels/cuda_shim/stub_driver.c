/* A stand-in for libcuda.so.1: says what the environment tells it to, and has no device that works. */
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
