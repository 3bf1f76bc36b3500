"""Threads of builds without OpenMP sleep when they wait, so that others may have the core."""

import subprocess
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from workhorse.config import places
from workhorse.engines.supply.build import WAIT_HEADER
from workhorse.engines.supply.toolchain import packaged_toolchain
from workhorse.models.fetch import no_progress

WAITED_MS = 400
# Time that this machine was kept from running counts as CPU time of whoever had the CPU.
ATTEMPTS = 10
# What ggml does: one thread waits for another's word in a loop of pauses.
PROGRAM = """
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <immintrin.h>
static atomic_int go;
static void *waits(void *unused) {
    struct timespec spent, began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (!atomic_load_explicit(&go, memory_order_relaxed)) { _mm_pause(); }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    printf("%ld %ld\\n", spent.tv_sec * 1000 + spent.tv_nsec / 1000000,
           (ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000);
    return unused;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, waits, 0);
    usleep(WAITED_MS * 1000);
    atomic_store(&go, 1);
    return pthread_join(thread, 0);
}
"""


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_a_thread_that_waits_long_takes_little_cpu_time(tmp_path: Path) -> None:
    toolchain = packaged_toolchain(places().tools, no_progress)
    source, program = tmp_path / "waits.c", tmp_path / "waits"
    source.write_text(PROGRAM)
    with as_file(files("workhorse.engines.supply").joinpath(WAIT_HEADER)) as header:
        words = ["-O2", "-std=c11", "-D_GNU_SOURCE", "-pthread", f"-DWAITED_MS={WAITED_MS}"]
        words += ["-Wall", "-Werror", "-include", str(header), str(source), "-o", str(program)]
        made = subprocess.run(
            [toolchain.c_compiler, *words],
            env=toolchain.variables(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert made.returncode == 0, made.stderr
    seen = []
    for _ in range(ATTEMPTS):
        said = subprocess.run([program], capture_output=True, check=True).stdout
        spent_ms, waited_ms = map(int, said.split())
        seen.append((spent_ms, waited_ms))
        if waited_ms > WAITED_MS / 2 and spent_ms < waited_ms / 2:
            return
    pytest.fail(f"CPU time and time in ms: {seen}")
