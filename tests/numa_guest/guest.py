"""The first and only process of the NUMA guest: looks, starts engines, tells, powers off.

Runs on a kernel without a system around it, so it mounts what it needs. What it saw is printed
as one line of JSON between two marks on the serial console; see `boot.py`.
"""

import asyncio
import ctypes
import fcntl
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGIN, END = "<<<workhorse numa guest", "workhorse numa guest>>>"
ENGINE_BYTES = 128 * 1024**2  # more than a node full of file cache has free
# Touches its memory, then answers every request: what an engine does, without the model.
ENGINE = f"""
import http.server, mmap, sys
memory = mmap.mmap(-1, {ENGINE_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, {ENGINE_BYTES}, 4096):
    memory[at] = 1
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""
# What the engine does first in the comparison: memory of node 1 wished for, not bound.
PREFER_NODE_1 = "import ctypes; ctypes.CDLL(None).syscall(238, 1, (ctypes.c_ulong * 1)(2), 65)"
DISK = Path("/dev/nvme0n1")
FULL_MIB = 32
MOUNTS = {
    "proc": "/proc",
    "sysfs": "/sys",
    "devtmpfs": "/dev",
    "cgroup2": "/sys/fs/cgroup",
}
NODES = Path("/sys/devices/system/node")
GROUP = Path("/sys/fs/cgroup/half")
SLOW_S = 240.0  # an emulated CPU starts Python in ten seconds


def main() -> None:
    """Everything, in order; a failure is told like a result."""
    report: dict[str, Any] = {}
    try:
        prepare()
        look(report)
    except Exception:  # noqa: BLE001  (there is no other place to tell it)
        report["failed"] = traceback.format_exc()
    print(f"\n{BEGIN}\n{json.dumps(report)}\n{END}", flush=True)
    os.sync()
    ctypes.CDLL(None).reboot(0x4321FEDC)  # RB_POWER_OFF, sys/reboot.h


def prepare() -> None:
    """Mount the kernel's file systems and raise the loopback interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, place in MOUNTS.items():
        if libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {place}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING, linux/if.h
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS


def look(report: dict[str, Any]) -> None:
    """Probe, plan, start engines under different plans, and look at their pages."""
    from workhorse.codec import from_json, to_json
    from workhorse.machine.probe import probe
    from workhorse.plan.cpus import choose_cpus, spread_cpus
    from workhorse.records import Machine

    report["kernel"] = os.uname().release
    report["kernel_says"] = {
        str(path.relative_to(NODES)): path.read_text().strip()
        for name in ("online", "node*/cpulist", "node*/distance")
        for path in sorted(NODES.glob(name))
    }
    began = time.monotonic()
    told = workhorse("probe", "--json", "--no-measure")
    report["probe_took_s"] = round(time.monotonic() - began, 1)
    machine = from_json(Machine, told, what="the probe")
    # Six times the usual second: emulated CPUs need it to touch the memory.
    measured = probe(measure_s=6.0)
    report["nodes"] = json.loads(to_json(machine.nodes))
    report["cores"] = json.loads(to_json(machine.cpu.cores))
    report["bandwidths"] = json.loads(to_json(measured.memory.bandwidths))
    report["doubts"] = [doubt.en for doubt in measured.doubts]
    one, beside, all_nodes = (
        choose_cpus(machine),
        choose_cpus(machine, beside_node=1),
        spread_cpus(machine),
    )
    report["plans"] = {
        name: {"threads": c.threads, "cpus": c.cpus, "memory_nodes": c.memory_nodes}
        for name, c in (("one", one), ("beside node 1", beside), ("all nodes", all_nodes))
    }
    report["engines"] = {
        "one": engine(one.cpus, one.memory_nodes),
        "beside node 1": engine(beside.cpus, beside.memory_nodes),
        "all nodes": engine(all_nodes.cpus, all_nodes.memory_nodes),
        "no plan": engine((), None),
    }
    if machine.nodes[1].memory_total_bytes:
        # First touch alone would put these pages on node 0: the binding puts them elsewhere.
        crossed = engine(machine.nodes[0].cpus, (1,))
        report["engines"]["CPUs of node 0, memory of node 1"] = crossed
        report["node 1 full of file cache"] = full(machine.nodes[1].cpus)
    report["cpuset of node 0's memory"] = half()


def full(cpus: tuple[int, ...]) -> dict[str, Any]:
    """Node 1 full of a file just read, as after a download: wished for, and bound."""
    # The kernel forgets what it read of a disk when nobody has it open any more.
    with DISK.open("rb", buffering=0) as disk:
        free = [fill_cache(disk, cpus)]
        preferred = engine(cpus, None, first=PREFER_NODE_1)
        free.append(fill_cache(disk, cpus))
        bound = engine(cpus, (1,))
    return {"free_mib": free, "preferred": preferred, "bound": bound}


def fill_cache(disk: io.FileIO, cpus: tuple[int, ...]) -> int:
    """Read on these CPUs until node 1 has little free memory; what is left, in MiB."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        while free_mib() > FULL_MIB and disk.read(4 * 1024**2):
            pass
    finally:
        os.sched_setaffinity(0, ours)
    return free_mib()


def free_mib() -> int:
    """Free memory of node 1."""
    return int(found(r"MemFree:\s*(\d+)", (NODES / "node1/meminfo").read_text())) // 1024


def engine(
    cpus: tuple[int, ...], memory_nodes: tuple[int, ...] | None, *, first: str = ""
) -> dict[str, Any]:
    """Start the engine as the product does and say where it runs and where its pages are."""
    from workhorse.errors import AppError
    from workhorse.records import Launch
    from workhorse.run.process import EngineProcess, free_port

    port = free_port("127.0.0.1")
    argv = (sys.executable, "-I", "-c", f"{first}\n{ENGINE}", str(port))
    launch = Launch(argv, {}, cpus, memory_nodes, "127.0.0.1", port, "/", 5.0)

    async def run() -> dict[str, Any]:
        process = EngineProcess(launch, Path(f"/run/engine-{port}.log"))
        await process.start()
        try:
            await process.wait_ready(SLOW_S)
            return where(process.pid)
        except AppError as error:
            return {"failed": error.what.en, "log": process.log_tail(20)}
        finally:
            await process.stop()

    return {"told": {"cpus": cpus, "memory_nodes": memory_nodes}} | asyncio.run(run())


def where(pid: int | None) -> dict[str, Any]:
    """The CPUs a process may use, and the policy and pages of its largest memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    maps = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    largest = max(maps, key=lambda line: int((re.search(r"anon=(\d+)", line) or [0, 0])[1]))
    return {
        "cpus_allowed": found(r"Cpus_allowed_list:\s*(\S+)", status),
        "policy": largest.split()[1],
        "pages": {f"node {n}": int(count) for n, count in re.findall(r" N(\d+)=(\d+)", largest)},
        "page_kib": int(found(r"kernelpagesize_kB=(\d+)", largest)),
    }


def half() -> dict[str, Any]:
    """A control group with every CPU and the memory of node 0 alone: what is planned in it?"""
    (GROUP.parent / "cgroup.subtree_control").write_text("+cpuset")
    GROUP.mkdir()
    (GROUP / "cpuset.mems").write_text("0")

    def enter() -> None:
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))

    code = (
        "import json, sys; sys.path.insert(0, '/'); import guest;"
        "from workhorse.machine.probe import probe;"
        "from workhorse.plan.cpus import choose_cpus, spread_cpus;"
        "m = probe(measure_s=0.0); c = choose_cpus(m); b = choose_cpus(m, beside_node=1);"
        "s = spread_cpus(m);"
        "print(json.dumps({'one': guest.engine(c.cpus, c.memory_nodes),"
        " 'beside node 1': guest.engine(b.cpus, b.memory_nodes),"
        " 'all nodes': guest.engine(s.cpus, s.memory_nodes)}))"
    )
    said: dict[str, Any] = json.loads(run_python("-c", code, first=enter))
    return said


def workhorse(*arguments: str) -> str:
    """What the command prints."""
    return run_python("-m", "workhorse", *arguments)


def run_python(*arguments: str, first: Callable[[], None] | None = None) -> str:
    """What a Python prints, or an error with what it said."""
    done = subprocess.run(
        [sys.executable, "-I", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * SLOW_S,
        preexec_fn=first,
        env={"HOME": "/root", "PATH": "/bin"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def found(pattern: str, text: str) -> str:
    """The first group of a pattern that must be there."""
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"no {pattern} in {text[:500]}")
    return match[1]


if __name__ == "__main__":
    main()
