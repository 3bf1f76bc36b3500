"""Each reader on small made-up files: limits, load, disks, nodes, hostile values."""

import os
from pathlib import Path

import pytest

from workhorse.machine.cpu import online_cpus, read_cpu
from workhorse.machine.disk import mount_of, read_disk
from workhorse.machine.files import FILE_BYTES_MAX, DirectoryFiles, PackedFiles
from workhorse.machine.kernel_text import chosen, cpu_list, number, size_bytes, words
from workhorse.machine.limits import read_limits
from workhorse.machine.load import others_cpus, read_ticks
from workhorse.machine.memory import read_memory
from workhorse.machine.numa import read_nodes
from workhorse.records import Limits

GIB = 1024**3
V1 = "sys/fs/cgroup"


def limits(
    files: dict[str, object], cpus: int = 8, affinity: tuple[int, ...] | None = None
) -> Limits:
    return read_limits(PackedFiles(files), tuple(range(cpus)), affinity, 64 * GIB)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8-9\n", (0, 1, 2, 3, 8, 9)),
        ("0,1", (0, 1)),
        ("", ()),
        ("7", (7,)),
        ("3-1", None),
        ("0-99999999999", None),
        ("0-8192", None),
        ("0-8191," * 2, None),
        ("-1", None),
        ("a-b", None),
        ("0-3:1/2", None),
        ("1" * 5000, None),
        (None, None),
    ],
)
def test_cpu_lists(text: str | None, cpus: tuple[int, ...] | None) -> None:
    assert cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "value"),
    [("35840K", 35840 * 1024), ("32M", 32 * 1024**2), ("56320 KB", 56320 * 1024),
     ("16 kB", 16384), ("-5 kB", None), ("", None), ("9" * 30 + "K", None), ("٣K", None)],
)  # fmt: skip
def test_sizes(text: str, value: int | None) -> None:
    assert size_bytes(text) == value


def test_numbers_are_whole_positive_and_bounded() -> None:
    assert number(" 42\n") == 42
    for text in ("-1", "1.5", "", "9" * 19 + "9", "0x10", "१२", "9" * 10**6, None):
        assert number(text) is None


def test_words_keep_control_characters_out() -> None:
    assert words("Tesla\x1b[31m \x00V100\n") == "Tesla [31m V100"
    assert words("\x00\n") is None and len(words("x" * 10**6) or "") == 200
    assert chosen("always [madvise] never") == "madvise" and chosen("always") is None


# ---------------------------------------------------------------- limits


def test_no_control_group_is_no_limit() -> None:
    assert limits({}) == Limits(tuple(range(8)), None, None, None)


def test_version_2_takes_the_tightest_limit_on_the_way_up() -> None:
    files: dict[str, object] = {
        "proc/self/cgroup": "0::/slice/job\n",
        f"{V1}/slice/job/cpu.max": "max 100000\n",
        f"{V1}/slice/cpu.max": "250000 100000\n",
        f"{V1}/slice/job/memory.max": str(16 * GIB),
        f"{V1}/slice/job/memory.current": str(5 * GIB),
        f"{V1}/slice/job/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
        f"{V1}/slice/memory.max": str(32 * GIB),
        f"{V1}/slice/job/cpuset.cpus.effective": "2-5\n",
    }
    assert limits(files) == Limits((2, 3, 4, 5), 2.5, 16 * GIB, 3 * GIB)


def test_version_2_in_a_container_is_the_root_of_the_mount() -> None:
    files: dict[str, object] = {
        "proc/self/cgroup": "0::/\n",
        f"{V1}/cpu.max": "150000 100000\n",
        f"{V1}/memory.max": str(4 * GIB),
        f"{V1}/memory.current": str(GIB),
    }
    assert limits(files) == Limits(tuple(range(8)), 1.5, 4 * GIB, GIB)


def test_version_1_quota_and_memory() -> None:
    files: dict[str, object] = {
        "proc/self/cgroup": "5:memory:/docker/c1\n4:cpu,cpuacct:/docker/c1\n3:cpuset:/docker/c1\n",
        f"{V1}/cpu,cpuacct/docker/c1/cpu.cfs_quota_us": "400000\n",
        f"{V1}/cpu,cpuacct/docker/c1/cpu.cfs_period_us": "100000\n",
        f"{V1}/memory/docker/c1/memory.limit_in_bytes": str(8 * GIB),
        f"{V1}/memory/docker/c1/memory.usage_in_bytes": str(3 * GIB),
        f"{V1}/memory/docker/c1/memory.stat": f"cache 5\ntotal_inactive_file {GIB}\n",
        f"{V1}/cpuset/docker/c1/cpuset.cpus": "0-1,6\n",
    }
    assert limits(files) == Limits((0, 1, 6), 4.0, 8 * GIB, 2 * GIB)


def test_version_1_in_a_container_whose_path_is_the_hosts() -> None:
    files: dict[str, object] = {
        "proc/self/cgroup": "5:memory:/docker/of-the-host\n4:cpu:/docker/of-the-host\n",
        f"{V1}/cpu/cpu.cfs_quota_us": "100000",
        f"{V1}/cpu/cpu.cfs_period_us": "50000",
        f"{V1}/memory/memory.limit_in_bytes": str(2 * GIB),
    }
    assert limits(files) == Limits(tuple(range(8)), 2.0, 2 * GIB, None)


@pytest.mark.parametrize(
    "files",
    [
        {f"{V1}/cpu.max": "max 100000", f"{V1}/memory.max": "max"},
        {f"{V1}/cpu.max": "800000 100000", f"{V1}/memory.max": str(64 * GIB)},  # all there is
        {f"{V1}/cpu.max": "100000 0", f"{V1}/memory.max": "-1"},
        {f"{V1}/cpu.max": "0 100000"},
        {f"{V1}/cpu.max": "\x00\xff", f"{V1}/memory.max": "1e9"},
        {
            "proc/self/cgroup": "4:cpu:/\n5:memory:/\n",
            f"{V1}/cpu/cpu.cfs_quota_us": "-1",
            f"{V1}/cpu/cpu.cfs_period_us": "100000",
            f"{V1}/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    ],
)
def test_what_is_no_limit(files: dict[str, object]) -> None:
    found = limits(files)
    assert (found.quota_cpus, found.memory_bytes, found.memory_used_bytes) == (None, None, None)


def test_a_group_outside_of_the_mount_does_not_lead_out_of_it() -> None:
    files: dict[str, object] = {"proc/self/cgroup": "0::/../../etc\n", "etc/cpu.max": "1 1"}
    assert limits(files).quota_cpus is None


def test_the_running_process_has_its_own_mask() -> None:
    assert limits({f"{V1}/cpuset.cpus.effective": "0-7"}, affinity=(3, 5)).cpus == (3, 5)


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({"proc/self/status": "Name:\tx\nMems_allowed_list:\t0-1\n"}, (0, 1)),
        ({f"{V1}/cpuset.mems.effective": "1\n"}, (1,)),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V1}/a/cpuset.mems.effective": "0\n"}, (0,)),
        (
            {"proc/self/cgroup": "3:cpuset:/c1\n", f"{V1}/cpuset/c1/cpuset.effective_mems": "1\n",
             f"{V1}/cpuset/c1/cpuset.mems": "0-1\n"},
            (1,),
        ),
        ({"proc/self/cgroup": "3:cpuset:/\n", f"{V1}/cpuset/cpuset.mems": "0-3\n"}, (0, 1, 2, 3)),
        (
            {"proc/self/status": "Mems_allowed_list:\t0\n", f"{V1}/cpuset.mems.effective": "0-1"},
            (0,),
        ),
        ({"proc/self/status": "Mems_allowed_list:\tx\n", f"{V1}/cpuset.mems.effective": ""}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_nodes_whose_memory_is_ours(
    files: dict[str, object], nodes: tuple[int, ...] | None
) -> None:
    assert limits(files).memory_nodes == nodes


# ---------------------------------------------------------------- load


def stat(*busy: int, passed: int = 100) -> str:
    return "cpu  9 9 9 9\n" + "".join(
        f"cpu{cpu} {ticks} 0 0 {passed - ticks} 0 0 0 0 0 0\n" for cpu, ticks in enumerate(busy)
    )


def own(ticks: int) -> str:
    return f"42 (a (strange) name) S 1 {'0 ' * 9}{ticks} 0 0 0\n"


def test_load_is_what_others_do_on_our_cpus() -> None:
    before = read_ticks(
        PackedFiles({"proc/stat": stat(0, 0, 0, passed=0), "proc/self/stat": own(0)})
    )
    after = read_ticks(PackedFiles({"proc/stat": stat(100, 50, 100), "proc/self/stat": own(30)}))
    assert others_cpus(before, after, (0, 1)) == pytest.approx(1.2)
    assert others_cpus(before, after, (1,)) == pytest.approx(0.2)
    assert others_cpus(before, after, ()) is None and others_cpus(None, after, (0,)) is None
    assert others_cpus(after, before, (0,)) is None  # counters that went back


@pytest.mark.parametrize("text", ["", "cpu0 1 2", "cpu0 a b c d", "cpu0 -1 0 0 0", "\x00" * 99])
def test_counters_that_make_no_sense_are_unknown(text: str) -> None:
    assert read_ticks(PackedFiles({"proc/stat": text, "proc/self/stat": own(1)})) is None


# ---------------------------------------------------------------- nodes, CPUs, memory


def test_a_kernel_without_numa_is_one_node() -> None:
    nodes, doubts = read_nodes(PackedFiles({"proc/meminfo": "MemTotal: 8 kB\n"}), (0, 1))
    assert [(n.index, n.cpus, n.memory_total_bytes) for n in nodes] == [(0, (0, 1), 8192)]
    assert doubts == ()


def test_a_node_without_cpus_is_memory_only_and_one_unreadable_is_doubted() -> None:
    root = "sys/devices/system/node"
    files: dict[str, object] = {
        f"{root}/online": "0-2",
        f"{root}/node0/cpulist": "0-3",
        f"{root}/node1/cpulist": "\n",
        f"{root}/node2/cpulist": "0-99999999999",
        f"{root}/node0/distance": "10 40 x",
    }
    nodes, doubts = read_nodes(PackedFiles(files), (0, 1, 2, 3))
    assert [node.cpus for node in nodes] == [(0, 1, 2, 3), (), ()]
    assert nodes[0].distances == () and len(doubts) == 1 and "2" in doubts[0].en


def test_siblings_that_overlap_put_each_cpu_into_one_core() -> None:
    root = "sys/devices/system/cpu"
    files: dict[str, object] = {
        f"{root}/online": "0-3",
        **{f"{root}/cpu{cpu}/topology/core_cpus_list": "0-99" for cpu in (0, 3)},
        f"{root}/cpu1/topology/core_cpus_list": "2",
        f"{root}/cpu0/topology/physical_package_id": "-1",
    }
    packed = PackedFiles(files)
    cpu, _ = read_cpu(packed, online_cpus(packed), (), None)
    assert [core.cpus for core in cpu.cores] == [(0, 1, 2, 3)] and cpu.cores[0].socket == 0


def test_memory_that_no_file_tells_is_unknown_and_doubted() -> None:
    memory, doubts = read_memory(PackedFiles({"proc/meminfo": "MemTotal: -5 kB\nSwapFree: x\n"}))
    assert memory.total_bytes is None and memory.swap_free_bytes is None and len(doubts) == 1


# ---------------------------------------------------------------- disks


def test_the_last_and_longest_mount_holds_the_path() -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /data rw shared:1 - xfs /dev/b rw\n"
        "3 1 8:3 / /with\\040space rw - btrfs /dev/c rw\n4 1 0:9 / /data rw - nfs4 host:/x rw\n"
        "rubbish\n5 1 8:4 / /da rw - vfat /dev/d rw\n"
    )
    for place, kind in (
        ("/data/models", "nfs4"),
        ("/with space/x", "btrfs"),
        ("/database", "ext4"),
    ):
        mount = mount_of(mounts, place)
        assert mount is not None and mount.kind == kind
    assert mount_of("", "/data") is None


def test_the_disk_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    disk, doubts = read_disk(DirectoryFiles(Path("/")), tmp_path / "not" / "yet")
    facts = os.statvfs(tmp_path)
    assert disk.total_bytes == facts.f_blocks * facts.f_frsize
    assert disk.file_system and doubts == ()


# ---------------------------------------------------------------- hostile trees


def test_a_captured_tree_is_never_left_and_never_waited_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("7")
    root = tmp_path / "tree"
    root.mkdir()
    os.mkfifo(root / "pipe")
    (root / "out").symlink_to(secret)
    (root / "loop").symlink_to(root / "loop")
    (root / "inside").symlink_to("plain")
    (root / "plain").write_text("5")
    (root / "folder").mkdir()
    files = DirectoryFiles(root)
    for path in ("pipe", "out", "loop", "folder", "missing", "../secret", "nul\x00byte"):
        assert files.text(path) is None and files.names(path) == ()
    assert files.text("inside") == "5"


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room
    assert len(DirectoryFiles(tmp_path).text("huge") or "") == FILE_BYTES_MAX
    assert len(PackedFiles({"huge": "x" * 2 * FILE_BYTES_MAX}).text("huge") or "") == FILE_BYTES_MAX
