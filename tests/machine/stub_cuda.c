/* A libcuda that copies nothing but checks what it is given: pointers are 64 bits wide, sizes are
 * those that were allocated, and every handle comes back as it was handed out. Its clock moves at
 * 400, 12 and 10 GB/s. Any wrong argument is CUDA_ERROR_INVALID_VALUE (1). */
#include <stddef.h>
#include <string.h>

typedef unsigned long long pointer;
static const pointer FIRST = 0x7f0123450000ULL, SECOND = 0x7f0999990000ULL;
static char *const HOST = (char *)0x7e0011220000ULL;
static void *const CONTEXT = (void *)0x7d0000001000ULL;
static double clock_ms, times_ms[2];
static int made, events;
static size_t on_card, pinned;

int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetByPCIBusId(int *device, const char *address) {
    *device = 3;
    return strcmp(address, "0000:18:00.0") ? 101 : 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = CONTEXT;
    return device != 3;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return device != 3; }
int cuCtxSetCurrent(void *context) { return context != CONTEXT; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)16 << 30;
    return 0;
}
int cuMemAlloc_v2(pointer *address, size_t size) {
    *address = made++ ? SECOND : FIRST;
    on_card = size;
    return size > (128u << 20);
}
int cuMemsetD32_v2(pointer address, unsigned value, size_t words) {
    return (address != FIRST && address != SECOND) || value == 0 || words * 4 != on_card;
}
int cuMemFree_v2(pointer address) { return address != FIRST && address != SECOND; }
int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    *address = HOST;
    pinned = size;
    return flags != 0;
}
int cuMemFreeHost(void *address) { return address != HOST; }
int cuEventCreate(void **event, unsigned flags) {
    *event = &times_ms[events++ % 2];
    return flags != 0;
}
int cuEventDestroy_v2(void *event) { return event == NULL; }
int cuEventRecord(void *event, void *stream) {
    *(double *)event = clock_ms;
    return stream != NULL;
}
int cuEventSynchronize(void *event) { return event != &times_ms[1]; }
int cuEventElapsedTime(float *ms, void *begin, void *end) {
    *ms = (float)(*(double *)end - *(double *)begin);
    return begin == end;
}
static int copy(size_t size, size_t limit, double bytes_per_ms, void *stream) {
    clock_ms += size / bytes_per_ms;
    return size == 0 || size > limit || stream != NULL;
}
int cuMemcpyDtoDAsync_v2(pointer to, pointer from, size_t size, void *stream) {
    return to != SECOND || from != FIRST || copy(size, on_card, 400e6, stream);
}
int cuMemcpyHtoDAsync_v2(pointer to, const void *from, size_t size, void *stream) {
    return to != SECOND || from != HOST || copy(size, pinned, 12e6, stream);
}
int cuMemcpyDtoHAsync_v2(void *to, pointer from, size_t size, void *stream) {
    return to != HOST || from != FIRST || copy(size, pinned, 10e6, stream);
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
