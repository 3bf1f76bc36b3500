/* Put before each C file of llama.cpp that is compiled without OpenMP (`-include`).
 *
 * ggml's own threads wait for each other in loops of _mm_pause() that never give the core back.
 * With one other busy program a core, 135M Q4_1 on two cores then decoded 0.4 tok/s, where
 * threads that sleep after a short wait decoded 20 (measured 2026-11-30). So: a wait spins for
 * some 10 us, then sleeps 10 us at a time, and after some 10 ms a millisecond at a time.
 */
#pragma once
#if defined(__x86_64__) && defined(__linux__) && !defined(__cplusplus)
#include <immintrin.h>
#include <sys/prctl.h>
#include <time.h>
#include <x86intrin.h>

/* Cycles of the time stamp counter, 2 to 4 of them a nanosecond on the CPUs that have AVX. */
#define BOUNDED_WAIT_SPIN 40000ull
#define BOUNDED_WAIT_LONG 20000000ull
#define BOUNDED_WAIT_GAP 20000ull /* so long without a pause: this is another wait */

static inline void bounded_wait_pause(void) {
    static __thread unsigned long long began, last;
    static __thread int precise;
    _mm_pause();
    unsigned long long now = __rdtsc();
    if (now - last > BOUNDED_WAIT_GAP) {
        began = now;
    }
    if (now - began > BOUNDED_WAIT_SPIN) {
        if (!precise) {
            prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0); /* else each nap takes 50 us more */
            precise = 1;
        }
        struct timespec nap = {0, now - began < BOUNDED_WAIT_LONG ? 10000 : 1000000};
        nanosleep(&nap, 0);
        now = __rdtsc();
    }
    last = now;
}

#define _mm_pause() bounded_wait_pause()
#endif
