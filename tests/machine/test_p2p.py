"""Copies between cards: what arrives, what does not, and what never ends."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captured_machines import CAPTURES

from workhorse.codec import to_json
from workhorse.machine.files import DirectoryFiles
from workhorse.machine.measured import measured_of, read_measured, with_measured
from workhorse.machine.p2p import HANGS, ask_child, measure_peers
from workhorse.machine.p2p_child import Begun, Done, Line, Pair, try_pair
from workhorse.machine.probe import probe
from workhorse.records import Gpu, GpuLink, Machine, PeerCopy
from workhorse.units import GB

PAIR = Pair("0000:08:00.0", "0000:85:00.0")
PATTERN = bytes(range(256)) * 4096


class PeerCuda:
    """libcuda with two cards whose copies advance a clock; `lose` says what a copy does to data."""

    def __init__(self, *, lose: str = "", peers: bool = True, failing: str = "") -> None:
        self.lose, self.peers, self.failing = lose, peers, failing
        self.current = 0
        self.memory: dict[int, bytes] = {}
        self.allowed: set[tuple[int, int]] = set()
        self.events: dict[int, float] = {}
        self.clock_ms = 0.0
        self.held: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name == self.failing:
                return 1
            method = getattr(type(self), f"_{name}", None)
            return (method(self, *arguments) if method else 0) or 0

        return call

    def _cuDeviceGetByPCIBusId(self, device: Any, address: bytes) -> int:
        known = (PAIR.first.encode(), PAIR.second.encode())
        if address not in known:
            return 101
        device._obj.value = known.index(address) + 1
        return 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        context._obj.value = device.value
        self.held.append("context")

    def _cuDevicePrimaryCtxRelease_v2(self, _: Any) -> None:
        self.held.remove("context")

    def _cuCtxSetCurrent(self, context: Any) -> None:
        self.current = context.value

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        address._obj.value = self.current
        self.memory[self.current] = bytes(size.value)
        self.held.append("memory")

    def _cuMemFree_v2(self, _: Any) -> None:
        self.held.remove("memory")

    def _cuDeviceCanAccessPeer(self, can: Any, *_: Any) -> None:
        can._obj.value = int(self.peers)

    def _cuCtxEnablePeerAccess(self, others: Any, _: Any) -> None:
        self.allowed.add((self.current, others.value))

    def _cuCtxDisablePeerAccess(self, others: Any) -> None:
        self.allowed.remove((self.current, others.value))

    def _cuMemsetD32_v2(self, address: Any, value: Any, words: Any) -> None:
        assert address.value == self.current
        self.memory[address.value] = value.value.to_bytes(4, "little") * words.value

    def _cuMemcpyHtoD_v2(self, address: Any, data: bytes, _: Any) -> None:
        self.memory[address.value] = data

    def _cuMemcpyDtoH_v2(self, target: Any, address: Any, size: Any) -> None:
        target.raw = self.memory[address.value][: size.value]

    def _cuMemcpyPeerAsync(
        self, to: Any, to_context: Any, source: Any, source_context: Any, size: Any, _: Any
    ) -> None:
        assert (to.value, source.value) == (to_context.value, source_context.value)
        assert source.value == self.current
        direct = bool(self.allowed)
        self.clock_ms += 0.01 + size.value / (40e6 if direct else 8e6)
        if self.lose == "all" or (self.lose == "direct" and direct):
            return
        sent = self.memory[source.value][: size.value]
        if self.lose == "a byte":
            sent = sent[:-1] + bytes([sent[-1] ^ 1])
        self.memory[to.value] = sent + self.memory[to.value][size.value :]

    def _cuEventCreate(self, event: Any, _: Any) -> None:
        self.events[len(self.events) + 1] = 0.0
        event._obj.value = len(self.events)
        self.held.append("event")

    def _cuEventDestroy_v2(self, _: Any) -> None:
        self.held.remove("event")

    def _cuEventRecord(self, event: Any, _: Any) -> None:
        self.events[event.value] = self.clock_ms

    def _cuEventElapsedTime(self, elapsed: Any, begin: Any, end: Any) -> None:
        elapsed._obj.value = self.events[end.value] - self.events[begin.value]

    def _cuGetErrorName(self, code: int, name: Any) -> None:
        name._obj.value = b"CUDA_ERROR_INVALID_VALUE"


def copies(cuda: PeerCuda, pair: Pair = PAIR) -> list[PeerCopy | None]:
    """What the child says of a pair, the beginnings checked."""
    said: list[Line] = []
    try_pair(cuda, pair, said.append, PATTERN)
    assert [line.begun for line in said[::2]] == [Begun(pair, False), Begun(pair, True)]
    assert cuda.held == [] and cuda.allowed == set()
    return [line.done.copy for line in said[1::2] if line.done is not None]


def test_copies_that_arrive_have_a_rate_and_a_latency() -> None:
    staged, direct = copies(PeerCuda())
    assert staged and direct and staged.right and direct.right
    assert (staged.direct, direct.direct) == (False, True)
    # The clock: 10 µs a copy, and 8 or 40 GB/s.
    n_bytes = len(PATTERN)
    assert staged.bytes_per_s == pytest.approx(n_bytes / (10e-6 + n_bytes / (8 * GB)))
    assert direct.bytes_per_s == pytest.approx(n_bytes / (10e-6 + n_bytes / (40 * GB)))
    assert staged.latency_s == pytest.approx(10.5e-6, rel=0.01)


@pytest.mark.parametrize(("lose", "right"), [
    ("all", [False, False]), ("a byte", [False, False]), ("direct", [True, False]),
])  # fmt: skip
def test_what_is_lost_without_an_error_is_found(lose: str, right: list[bool]) -> None:
    assert [copy.right for copy in copies(PeerCuda(lose=lose)) if copy] == right


def test_a_driver_that_offers_no_direct_copies() -> None:
    staged, direct = copies(PeerCuda(peers=False))
    assert staged and staged.right and direct is None


@pytest.mark.parametrize("call", [
    "cuInit", "cuMemAlloc_v2", "cuMemcpyPeerAsync", "cuCtxSynchronize", "cuEventElapsedTime",
])  # fmt: skip
def test_a_call_that_fails_is_named(call: str) -> None:
    staged, _ = copies(PeerCuda(failing=call))
    assert staged == PeerCopy(False, None, failure=f"{call}: CUDA_ERROR_INVALID_VALUE")


def test_a_card_that_is_not_there() -> None:
    staged, _ = copies(PeerCuda(), Pair(PAIR.first, "0000:ff:00.0"))
    assert staged and staged.failure and "cuDeviceGetByPCIBusId" in staged.failure


# -------------------------------------------------------------- the parent

RIGHT = PeerCopy(False, True, 9e9, 12e-6)


def linked(count: int) -> tuple[tuple[Gpu, ...], tuple[GpuLink, ...]]:
    """So many free cards with a link between each two."""
    gpu = probe(CAPTURES / "two_v100.json").gpus[0]
    cards = tuple(replace(gpu, index=n, pci_address=f"0000:0{n}:00.0") for n in range(count))
    links = tuple(
        GpuLink(a, b, "SYS", None, True) for a in range(count) for b in range(a + 1, count)
    )
    return cards, links


def done(pair: Pair, copy: PeerCopy | None) -> Line:
    return Line(done=Done(pair, bool(copy and copy.direct), copy))


def test_copies_are_put_to_their_links() -> None:
    gpus, links = linked(2)

    def ask(pairs: Sequence[Pair]) -> tuple[Line, ...]:
        (pair,) = pairs
        return (Line(begun=Begun(pair, False)), done(pair, RIGHT), done(pair, None))

    (link,), doubts = measure_peers(gpus, links, ask=ask)
    assert link.copies == (RIGHT,) and doubts == ()


def test_the_pair_that_was_begun_last_hangs_and_its_cards_are_left_alone() -> None:
    gpus, links = linked(4)
    asked: list[tuple[Pair, ...]] = []

    def ask(pairs: Sequence[Pair]) -> tuple[Line, ...]:
        asked.append(tuple(pairs))
        if len(asked) > 1:
            return tuple(done(pair, RIGHT) for pair in pairs)
        first, second = pairs[:2]
        return (done(first, RIGHT), Line(begun=Begun(second, True)))

    measured, doubts = measure_peers(gpus, links, ask=ask)
    copies = {(link.first, link.second): link.copies for link in measured}
    assert copies[0, 1] == (RIGHT,)
    assert copies[0, 2] == (PeerCopy(True, None, failure=HANGS),)
    assert copies[1, 3] == (RIGHT,)  # neither card hung
    assert copies[0, 3] == copies[1, 2] == copies[2, 3] == ()
    assert len(asked) == 2 and len(doubts) == 1 and "0–3" in doubts[0].en


def test_a_refusal_and_a_silence_are_doubts() -> None:
    gpus, links = linked(2)
    failed = PeerCopy(False, None, failure="cuInit: CUDA_ERROR_UNKNOWN")
    (link,), doubts = measure_peers(gpus, links, ask=lambda pairs: (done(pairs[0], failed),))
    assert link.copies == () and "CUDA_ERROR_UNKNOWN" in doubts[0].en
    (link,), doubts = measure_peers(gpus, links, ask=lambda _: ())
    assert link.copies == () and "no answer" in doubts[0].en


@pytest.mark.parametrize("change", [
    {"busy_percent": 60}, {"memory_free_bytes": 1 << 20}, {"mig": True}, {"pci_address": None},
])  # fmt: skip
def test_a_card_in_use_is_left_alone(change: dict[str, Any]) -> None:
    def refuse(_: Sequence[Pair]) -> tuple[Line, ...]:
        raise AssertionError("asked")

    gpus, links = linked(2)
    used = (replace(gpus[0], **change), gpus[1])
    assert measure_peers(used, links, ask=refuse) == (links, ())
    assert measure_peers((), (), ask=refuse) == ((), ())


def test_the_child_answers_on_this_machine() -> None:
    """Real child, real loader: without a card (or without a driver) it says why."""
    lines = ask_child([Pair("ffff:ff:1f.6", "ffff:ff:1f.7")])
    copies = [line.done.copy for line in lines if line.done is not None]
    assert copies and all(copy is not None and copy.failure for copy in copies)


def test_the_child_calls_the_library_with_what_its_header_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library = Path(__file__).parent / "stub_peers.c", tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    lines = ask_child([PAIR, Pair(PAIR.first, "0000:ff:00.0")])
    copies = [line.done.copy for line in lines if line.done is not None]
    assert [copy.right for copy in copies[:2] if copy] == [True, True]
    assert [copy.bytes_per_s for copy in copies[:2] if copy] == [
        pytest.approx(8 * GB, rel=1e-3), pytest.approx(40 * GB, rel=1e-3),
    ]  # fmt: skip
    assert copies[2] and copies[2].failure == "cuDeviceGetByPCIBusId: CUDA_ERROR_INVALID_DEVICE"


def test_a_child_that_says_no_more_is_ended() -> None:
    begun = to_json(Line(begun=Begun(PAIR, False))).replace("\n", "")
    program = f"import sys, threading; print({begun!r}, flush=True); threading.Event().wait()"
    # Nothing comes after the first line, however long one waits.
    lines = ask_child([PAIR], copy_within_s=0.2, program=("-c", program))
    assert lines == (Line(begun=Begun(PAIR, False)),)


@pytest.mark.parametrize("said", ["{", "[]", '{"begun": 5}', "[" * 9999])
def test_broken_lines_are_no_lines(said: str) -> None:
    whole = to_json(done(PAIR, RIGHT)).replace("\n", "")
    program = f"print({said!r}); print({whole!r})"
    assert ask_child([PAIR], program=("-c", program)) == (done(PAIR, RIGHT),)


def test_a_child_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert ask_child([PAIR]) == ()


# -------------------------------------------------------------- in a capture


def tried(copy: PeerCopy) -> Machine:
    machine = probe(CAPTURES / "two_v100.json")
    return replace(
        machine, gpu_links=tuple(replace(link, copies=(copy,)) for link in machine.gpu_links)
    )


def test_a_capture_keeps_the_copies(tmp_path: Any) -> None:
    machine = tried(RIGHT)
    (tmp_path / "measured.json").write_text(to_json(measured_of(machine)), encoding="utf-8")
    measured, doubts = read_measured(DirectoryFiles(tmp_path))
    assert doubts == ()
    plain = replace(
        machine, gpu_links=tuple(replace(link, copies=()) for link in machine.gpu_links)
    )
    assert with_measured(plain, measured).gpu_links == machine.gpu_links


def test_hostile_figures_of_a_capture_are_unknown(tmp_path: Any) -> None:
    machine = tried(PeerCopy(False, True, 1e300, -1.0, "\x1b[31m" + "x" * 9))
    (tmp_path / "measured.json").write_text(to_json(measured_of(machine)), encoding="utf-8")
    (link,) = read_measured(DirectoryFiles(tmp_path))[0].links
    assert (link.copies[0].bytes_per_s, link.copies[0].latency_s) == (None, None)
    assert "\x1b" not in (link.copies[0].failure or "")
