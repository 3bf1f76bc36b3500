/* A libcuda with two cards that copies for real: each card's memory is one block, and every handle
 * has to come back as it was handed out. Its clock moves at 8 GB/s, at 40 once peers may read each
 * other. Any wrong argument is CUDA_ERROR_INVALID_VALUE (1). */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long pointer;
static char *memory[2];
static size_t sizes[2];
static int contexts[2], may_read[2], current = -1, events;
static double clock_ms, times_ms[64];

static int card_of(const void *context) {
    return context == &contexts[0] ? 0 : context == &contexts[1] ? 1 : -1;
}
static int holder_of(pointer address) {
    return address == 0x7f0000000000ULL ? 0 : address == 0x7f1111110000ULL ? 1 : -1;
}

int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetByPCIBusId(int *device, const char *address) {
    *device = 7 + !strcmp(address, "0000:85:00.0");
    return strcmp(address, "0000:08:00.0") && *device == 7 ? 101 : 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device != 7 && device != 8) return 1;
    *context = &contexts[device - 7];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return device != 7 && device != 8; }
int cuCtxSetCurrent(void *context) { return (current = card_of(context)) < 0; }
int cuCtxSynchronize(void) { return current < 0; }
int cuMemAlloc_v2(pointer *address, size_t size) {
    if (current < 0 || size > (64u << 20)) return 1;
    memory[current] = malloc(sizes[current] = size);
    *address = current ? 0x7f1111110000ULL : 0x7f0000000000ULL;
    return 0;
}
int cuMemFree_v2(pointer address) {
    int card = holder_of(address);
    if (card < 0) return 1;
    free(memory[card]);
    memory[card] = NULL;
    return 0;
}
int cuMemsetD32_v2(pointer address, unsigned value, size_t words) {
    int card = holder_of(address);
    if (card != current || words * 4 != sizes[card]) return 1;
    for (size_t i = 0; i < words; i++) memcpy(memory[card] + 4 * i, &value, 4);
    return 0;
}
int cuMemcpyHtoD_v2(pointer to, const void *from, size_t size) {
    int card = holder_of(to);
    if (card != current || size != sizes[card]) return 1;
    memcpy(memory[card], from, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, pointer from, size_t size) {
    int card = holder_of(from);
    if (card != current || size != sizes[card]) return 1;
    memcpy(to, memory[card], size);
    return 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int other) {
    *can = 1;
    return device == other || device < 7 || device > 8 || other < 7 || other > 8;
}
int cuCtxEnablePeerAccess(void *other, unsigned flags) {
    if (flags || card_of(other) != 1 - current || may_read[current]) return 1;
    return may_read[current] = 1, 0;
}
int cuCtxDisablePeerAccess(void *other) {
    if (card_of(other) != 1 - current || !may_read[current]) return 1;
    return may_read[current] = 0;
}
int cuMemcpyPeerAsync(pointer to, void *to_context, pointer from, void *from_context, size_t size,
                      void *stream) {
    int target = holder_of(to), source = holder_of(from);
    if (target < 0 || source != current || target == source || stream != NULL) return 1;
    if (card_of(to_context) != target || card_of(from_context) != source) return 1;
    if (size == 0 || size > sizes[source]) return 1;
    memcpy(memory[target], memory[source], size);
    clock_ms += size / (may_read[0] && may_read[1] ? 40e6 : 8e6);
    return 0;
}
int cuEventCreate(void **event, unsigned flags) {
    *event = &times_ms[events++ % 64];
    return flags != 0;
}
int cuEventDestroy_v2(void *event) { return event == NULL; }
int cuEventRecord(void *event, void *stream) {
    *(double *)event = clock_ms;
    return stream != NULL;
}
int cuEventSynchronize(void *event) { return event == NULL; }
int cuEventElapsedTime(float *ms, void *begin, void *end) {
    *ms = (float)(*(double *)end - *(double *)begin);
    return begin == end;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
