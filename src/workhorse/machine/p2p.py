"""Whether copies between cards arrive, how fast, and which of them never end.

The copying is done by a child (`p2p_child.py`): a copy that a board loses can hang the driver, and
then the child says no more. The pair that it had begun is the one that hangs; the others are asked
again by a new child.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import msgspec

from workhorse.machine.p2p_child import Line, Pair
from workhorse.records import Gpu, GpuLink, PeerCopy
from workhorse.text import Text
from workhorse.units import MIB

HANGS = "hangs"
# To load the driver and wake eight cards without persistence mode: some 15 s. A copy of 32 MiB
# takes 3 to 30 ms; a context on a card 0.3 to 3 s.
_START_WITHIN_S = 60.0
_COPY_WITHIN_S = 60.0
# A card that hung once is left alone: each further child may hang on it as well.
_CHILDREN_MAX = 4
_FREE_BYTES_MIN = 1024 * MIB
_LINE_BYTES_MAX = 64 * 1024
_ANSWER_BYTES_MAX = 4 * MIB

Ask = Callable[[Sequence[Pair]], tuple[Line, ...]]


def measure_peers(
    gpus: Sequence[Gpu], links: Sequence[GpuLink], *, ask: Ask | None = None
) -> tuple[tuple[GpuLink, ...], tuple[Text, ...]]:
    """The links with the copies that were tried, and what could not be.

    Cards that others use, that are divided or whose address is not known are left alone.
    """
    by_index = {gpu.index: gpu for gpu in gpus if _free(gpu)}
    addresses = {index: gpu.pci_address or "" for index, gpu in by_index.items()}
    wanted = {
        Pair(addresses[first], addresses[second]): (first, second)
        for first, second in combinations(sorted(by_index), 2)
        if any((link.first, link.second) == (first, second) for link in links)
    }
    if not wanted:
        return tuple(links), ()
    copies, failure = tried(tuple(wanted), ask or ask_child)
    found = {wanted[pair]: tuple(each) for pair, each in copies.items() if pair in wanted and each}
    measured = tuple(
        replace(link, copies=found.get((link.first, link.second), link.copies)) for link in links
    )
    missing = [pair for pair in wanted.values() if pair not in found]
    return measured, (() if not missing else (_not_tried(missing, failure),))


def tried(pairs: Sequence[Pair], ask: Ask) -> tuple[dict[Pair, list[PeerCopy]], str | None]:
    """The copies of each pair, the hanging ones among them, and why others have none."""
    found: dict[Pair, list[PeerCopy]] = {}
    left, failure = list(pairs), None
    for _ in range(_CHILDREN_MAX):
        begun: tuple[Pair, bool] | None = None
        for line in ask(left):
            if line.begun is not None:
                begun = (line.begun.pair, line.begun.direct)
            if line.done is None:
                continue
            begun = None
            copy = line.done.copy
            if copy is None:
                continue
            if copy.right is None and not copy.direct:
                failure = copy.failure
                continue
            found.setdefault(line.done.pair, []).append(copy)
        if begun is None:
            return found, failure
        hung, direct = begun
        found.setdefault(hung, []).append(PeerCopy(direct, None, failure=HANGS))
        if hung not in left:
            return found, failure
        # Whatever touches these cards next may hang as well.
        left = [
            pair
            for pair in left[left.index(hung) + 1 :]
            if not {pair.first, pair.second} & {hung.first, hung.second}
        ]
        if not left:
            return found, failure
    return found, failure


def ask_child(
    pairs: Sequence[Pair],
    start_within_s: float = _START_WITHIN_S,
    copy_within_s: float = _COPY_WITHIN_S,
    program: Sequence[str] = ("-P", "-m", "workhorse.machine.p2p_child"),
) -> tuple[Line, ...]:
    """What a child process says until it ends, or says nothing for too long."""
    try:
        child = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return ()
    said: tuple[Line, ...] = ()
    if child.stdin is not None and child.stdout is not None:
        with contextlib.suppress(OSError):  # it may have ended already
            child.stdin.write(msgspec.json.encode(pairs))
            child.stdin.close()
        said = tuple(_lines(child.stdout.fileno(), start_within_s, copy_within_s))
        child.stdout.close()
    child.kill()
    # Not waited for without a limit: a process within a hanging driver cannot even be killed.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(2)
    return said


def _lines(descriptor: int, first_within_s: float, next_within_s: float) -> Iterator[Line]:
    """The child's lines, as long as each comes in time."""
    pending, total, patience_s = b"", 0, first_within_s
    while total < _ANSWER_BYTES_MAX and len(pending) < _LINE_BYTES_MAX:
        ready, _, _ = select.select([descriptor], [], [], patience_s)
        read = os.read(descriptor, 65536) if ready else b""
        if not read:
            return
        total += len(read)
        *whole, pending = (pending + read).split(b"\n")
        for line in whole:
            patience_s = next_within_s
            with contextlib.suppress(ValueError, RecursionError):
                yield msgspec.json.decode(line, type=Line)


def _free(gpu: Gpu) -> bool:
    """Whether nobody else's work is on the card, and there is room for the copies."""
    free = gpu.memory_free_bytes
    return (
        gpu.pci_address is not None
        and not gpu.mig
        and (free is None or free >= _FREE_BYTES_MIN)
        and (gpu.busy_percent or 0) <= 10
    )


def _not_tried(pairs: Sequence[tuple[int, int]], failure: str | None) -> Text:
    listed = ", ".join(f"{first}–{second}" for first, second in pairs[:6])
    why = failure or "the driver gave no answer"
    why_zh = failure or "驱动没有响应"
    return Text(
        f"Copies between GPU {listed} were not tried: {why}.",
        f"未能测试 GPU {listed} 之间的拷贝：{why_zh}。",
    )
