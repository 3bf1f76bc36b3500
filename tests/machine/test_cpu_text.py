"""The kernel's files made of what lscpu, numactl and free print."""

import pytest
from captured_machines import CAPTURES, packed

from workhorse.machine.cpu_text import kernel_files, lscpu_facts
from workhorse.machine.files import PackedFiles
from workhorse.machine.loose_texts import recognise
from workhorse.machine.probe import read_machine
from workhorse.records import Machine

LSCPU = (CAPTURES / "texts" / "two_nodes" / "a.txt").read_text()


def of(texts: dict[str, str]) -> Machine:
    return read_machine(PackedFiles(dict(recognise(texts).files)))


def test_chinese_lscpu_says_the_same() -> None:
    chinese = (
        "架构：                 x86_64\n在线 CPU 列表：        0-7\n每个核的线程数：       2\n"
        "座：                   1\n型号名称：             Intel(R) Xeon(R) CPU E5-2630 v3\n"
        "L3 缓存：              20480K\nNUMA 节点0 CPU：       0-7\n"
        "标记：                 fpu avx2\n"
    )
    assert lscpu_facts(chinese)["NUMA node0 CPU(s)"] == "0-7"
    machine = of({"x": chinese})
    assert len(machine.cpu.cores) == 4 and machine.cpu.l3_bytes == 20480 * 1024
    assert machine.cpu.cores[0].cpus == (0, 4) and "avx2" in machine.cpu.flags


# ---------------------------------------------------------------- what shares a core


def cores(text: str, table: str | None = None, numactl: str | None = None) -> list[tuple[int, ...]]:
    files: dict[str, object] = {**kernel_files(text, table, numactl)}
    return [core.cpus for core in read_machine(PackedFiles(files)).cpu.cores]


def lscpu(cpus: str, threads: int, sockets: int, *nodes: str, more: str = "") -> str:
    lines = [f"Architecture: x86_64\nOn-line CPU(s) list: {cpus}\nThread(s) per core: {threads}\n"]
    lines += [f"Socket(s): {sockets}\n", more]
    lines += [f"NUMA node{index} CPU(s): {cpus}\n" for index, cpus in enumerate(nodes)]
    return "".join(lines)


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [
        (lscpu("0-55", 2, 2, "0-13,28-41", "14-27,42-55"), (0, 28), 28),
        (lscpu("0-47", 2, 2, ",".join(map(str, range(0, 48, 2))),
               ",".join(map(str, range(1, 48, 2)))), (0, 24), 24),
        (lscpu("0-15", 2, 1, "0-15"), (0, 8), 8),
        (lscpu("0-15", 2, 1, "0-15", more="Hypervisor vendor: KVM\n"), (0, 1), 8),
        (lscpu("0-31", 2, 2, "0-15", "16-31"), (0, 1), 16),
        (lscpu("0-15", 1, 1), (0,), 16),
    ],
)  # fmt: skip
def test_threads_of_a_core_follow_the_kernels_numbering(
    text: str, first: tuple[int, ...], count: int
) -> None:
    found = cores(text)
    assert found[0] == first and len(found) == count


def test_with_a_cpu_offline_the_counts_are_not_trusted() -> None:
    machine = of({"x": lscpu("0-6", 2, 1, "0-6")})
    assert len(machine.cpu.cores) == 7
    assert any("physical core" in doubt.en for doubt in machine.doubts)


@pytest.mark.parametrize(
    "table",
    ["CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n  0    0      0    0 0:0:0:0  yes\n"
     "  1    0      0    0 0:0:0:0  yes\n  2    1      1    1 1:1:1:1  yes\n"
     "  3    1      1    1 1:1:1:1  yes\n",
     "# The following is the parsable format\n# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n"
     "0,0,0,0,,0,0,0\n1,0,0,0,,0,0,0,0\n2,1,1,1,,1,1,1\n3,1,1,1,,1,1,1,1\n"],
)  # fmt: skip
def test_lscpus_table_is_exact(table: str) -> None:
    loose = recognise({"a": lscpu("0-3", 2, 2), "b": table})
    assert not loose.cores_inferred
    machine = read_machine(PackedFiles(dict(loose.files)))
    assert [(core.socket, core.node, core.cpus) for core in machine.cpu.cores] == [
        (0, 0, (0, 1)), (1, 1, (2, 3)),
    ]  # fmt: skip


def test_a_whole_cpuinfo_counts_before_lscpus_counts() -> None:
    files = packed("machine_b")
    loose = recognise({"cpuinfo": files["proc/cpuinfo"], "lscpu": LSCPU})
    assert not loose.cores_inferred
    assert not any("/topology/" in path for path in loose.files)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("total", "available", "gib"),
    [("131676000", "124900000", 125), ("128601", "120000", 125), ("125", "120", 125),
     ("134836224000", "129000000000", 125), ("125Gi", "120Gi", 125), ("1.5Ti", "1.4Ti", 1536),
     ("4030000", "3000000", 3)],
)  # fmt: skip
def test_frees_unit_is_told_by_its_size(total: str, available: str, gib: int) -> None:
    text = (
        "               total        used        free      shared  buff/cache   available\n"
        f"Mem:  {total}  0  {available}  0  0  {available}\nSwap: 0 0 0\n"
    )
    memory = of({"x": text}).memory
    assert memory.total_bytes is not None and memory.total_bytes // 1024**3 == gib
    assert memory.available_bytes is not None and memory.available_bytes < memory.total_bytes


def test_lines_that_a_terminal_cut_are_put_together() -> None:
    cut = (
        "架构：                   x86_64\nCPU:                     4\n"
        "  在线 CPU 列表：        0-3\n厂商 ID：                GenuineIntel\n"
        "    每个核的线程数：     1\n    座：                 1\n"
        "    标记：               fpu sse sse2 fma cx1\n"
        "                         6 avx2 avx512f f16c\n"
        "                         movbe hypervisor\n"
        "Caches (sum of all):     \n  L2:                    4 MiB (4 instances)\n"
    )
    cpu = of({"x": cut}).cpu
    assert {"cx16", "avx2", "avx512f", "f16c", "movbe"} <= set(cpu.flags)
    assert cpu.l2_bytes == 1024**2 and len(cpu.cores) == 4


def test_chinese_free_says_the_same() -> None:
    text = (
        "               总计         已用        空闲      共享    缓冲/缓存    可用\n"
        "内存：    131676000    3000000   120000000    1000     8676000   124900000\n"
        "交换：      8388604          0     8388604\n"
    )
    memory = of({"x": text}).memory
    assert memory.total_bytes == 131676000 * 1024 and memory.available_bytes == 124900000 * 1024
    assert memory.swap_free_bytes == 8388604 * 1024
