"""Where a memory slot is, by what the board's maker wrote on it: socket and channel.

Makers label as they like, so all labels of a board are read together: one way of reading them
must fit every slot, and what it says must be possible on this machine. Else the place is unknown.
The ways (2026-11): `P1-DIMMA1` and `DIMM_P0_A0` (Supermicro, Gigabyte), `CPU0_DIMM_A1` (ASRock,
Inspur), `DIMM_A1` with letters that go on over the sockets (Intel, Cisco, ASUS), `NODE 0 CHANNEL 0`
and `P0 CHANNEL A` in the bank's label (AMI), `ChannelA-DIMM0` (desktop boards), `A1` … `B12` where
the letter is the socket (Dell: manuals of R430, R730, R740, T420), `PROC 1 DIMM 1` (HPE: guides of
ProLiant Gen9), `DIMM000` (Huawei).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_SOCKET = re.compile(r"(?<![A-Z])(?:CPU|PROC|PROCESSOR|P|SOCKET)[ _#-]*(\d{1,2})(?!\d)")
_NODE = re.compile(r"NODE[ _#-]*(\d{1,2})(?!\d)")
_CONTROLLER = re.compile(r"(?<![A-Z])(?:HA|I?MC|CONTROLLER)[ _#-]*(\d)(?!\d)")
_CHANNEL = re.compile(r"CHAN(?:NEL)?[ _#-]*(\d{1,2}|[A-P])(?![A-Z0-9])|(?<![A-Z])C(\d)D\d")
_LETTER = re.compile(
    r"(?:DIMM[ _-]*|^(?=[A-P]\d+ \|)|(?:CPU|P)\d+[ _-]+)([A-P])[ _-]?(\d{1,2})(?![A-Z0-9])"
    r"(?![ _-]*[A-P]\d)"  # in `DIMM_P0_A0` the P is the processor
)
_PROC_DIMM = re.compile(r"^PROC (\d) DIMM (\d{1,2})(?: ?[A-L])?$")
_DIGITS = re.compile(r"^DIMM(\d)(\d)(\d)(?!\d)")
# No server platform has had more than three modules a channel since DDR3 (2026-11).
_MODULES_A_CHANNEL_MAX = 3

Key = tuple[int, int]  # a channel as the labels count: memory controller and channel


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot as the board's table has it."""

    label: str
    bank: str
    filled: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Socket (the kernel's number) and channel within it; None: not known."""

    socket: int | None = None
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class _Raw:
    """A label's own numbers."""

    socket: int | None
    key: Key | None


def places(
    slots: Sequence[Slot], sockets: tuple[int, ...], channels: int | None
) -> tuple[Place, ...]:
    """The place of each slot. Pure.

    `slots` are all slots of the board, empty ones too; `sockets` are the sockets with a CPU in
    them; `channels` is how many channels one socket has, None when that is not known.
    """
    texts = [f"{s.label} | {s.bank}".upper() for s in slots]
    raws = _raws(texts, _nodes(texts, len(sockets)), channels)
    raws = _with_sockets(raws, sockets, channels)
    numbers = _socket_numbers(raws, slots, sockets)
    placed = [Place(numbers.get(raw.socket), None) for raw in raws]
    return settle(placed, [raw.key for raw in raws], [s.filled for s in slots], channels)


def settle(
    placed: Sequence[Place],
    keys: Sequence[Key | None],
    filled: Sequence[bool],
    channels: int | None,
) -> tuple[Place, ...]:
    """The places with their channels counted from 0 within each socket.

    A socket with more channels than it can have, or more modules on one, was misread: its
    channels stay unknown.
    """
    settled = list(placed)
    for socket in {place.socket for place in placed if place.socket is not None}:
        mine = {
            i: key
            for i, place in enumerate(placed)
            if place.socket == socket and (key := keys[i]) is not None
        }
        numbers = {key: number for number, key in enumerate(sorted(set(mine.values())))}
        modules = Counter(key for i, key in mine.items() if filled[i])
        crowded = max(modules.values(), default=0) > _MODULES_A_CHANNEL_MAX
        if crowded or (channels and len(numbers) > channels):
            continue
        for i, key in mine.items():
            settled[i] = Place(socket, numbers[key])
    return tuple(settled)


def _nodes(texts: list[str], sockets: int) -> list[re.Match[str]]:
    """The nodes in the banks' labels; none when a board writes the same one for every socket."""
    nodes = _all(texts, _NODE)
    return nodes if len({match[1] for match in nodes}) >= sockets else []


def _raws(texts: list[str], nodes: list[re.Match[str]], channels: int | None) -> list[_Raw]:
    """The numbers in the labels, by the first way of reading that fits every one of them."""
    nothing = [_Raw(None, None)] * len(texts)
    sockets = _all(texts, _SOCKET)
    if digits := _all(texts, _DIGITS):
        return [_Raw(int(m[1]), (0, int(m[2]))) for m in digits]
    if found := _all(texts, _CHANNEL):
        owners = sockets or nodes
        controllers = _all(texts, _CONTROLLER) or (nodes if sockets else [])
        return [
            _Raw(
                int(owners[i][1]) if owners else None,
                (int(controllers[i][1]) if controllers else 0, _number(match[1] or match[2])),
            )
            for i, match in enumerate(found)
        ]
    if letters := _all(texts, _LETTER):
        owners = sockets or nodes
        if not owners and max(int(m[2]) for m in letters) > _MODULES_A_CHANNEL_MAX:
            # Dell: the letter is the socket; slots 1 to n are the first of each channel.
            if not channels:
                return [_Raw(_number(m[1]), None) for m in letters]
            return [_Raw(_number(m[1]), (0, (int(m[2]) - 1) % channels)) for m in letters]
        return [
            _Raw(int(owners[i][1]) if owners else None, (0, _number(m[1])))
            for i, m in enumerate(letters)
        ]
    if pairs := _all([text.partition(" | ")[0] for text in texts], _PROC_DIMM):
        return _proliant([(int(m[1]), int(m[2])) for m in pairs], channels)
    return [_Raw(int(m[1]), None) for m in sockets] if sockets else nothing


def _all(texts: list[str], pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """The pattern's match in each text; none unless it is in every one."""
    found = [match for text in texts if (match := pattern.search(text))]
    return found if len(found) == len(texts) else []


def _number(word: str) -> int:
    return int(word) if word.isdigit() else ord(word) - ord("A")


def _proliant(pairs: list[tuple[int, int]], channels: int | None) -> list[_Raw]:
    """HPE counts a processor's slots through, channel after channel, since Gen8 (Xeon E5).

    Earlier boards, with three channels, are described in two ways that exclude each other.
    """
    raws = []
    slots: dict[int, set[int]] = {}
    for socket, slot in pairs:
        slots.setdefault(socket, set()).add(slot)
    for socket, slot in pairs:
        count = len(slots[socket])
        whole = slots[socket] == set(range(1, count + 1))
        known = channels and channels > 3 and whole and count % channels == 0
        raws.append(
            _Raw(socket, (0, (slot - 1) // (count // channels)) if known and channels else None)
        )
    return raws


def _with_sockets(raws: list[_Raw], sockets: tuple[int, ...], channels: int | None) -> list[_Raw]:
    """The same with the sockets that the labels leave out, where only one reading is possible."""
    if any(raw.socket is not None for raw in raws):
        return raws
    if len(sockets) == 1:
        return [_Raw(0, raw.key) for raw in raws]
    keys = sorted({raw.key for raw in raws if raw.key is not None})
    if channels and sockets and len(keys) == channels * len(sockets):
        # Letters that go on over the sockets: A to D belong to the first, E to H to the second.
        return [
            _Raw(None if raw.key is None else keys.index(raw.key) // channels, raw.key)
            for raw in raws
        ]
    return raws


def _socket_numbers(
    raws: list[_Raw], slots: Sequence[Slot], sockets: tuple[int, ...]
) -> dict[int | None, int]:
    """The kernel's number of each socket that the labels number in their own way."""
    named = sorted({raw.socket for raw in raws if raw.socket is not None})
    in_use = sorted(
        {
            r.socket
            for r, slot in zip(raws, slots, strict=True)
            if slot.filled and r.socket is not None
        }
    )
    for labelled in (named, in_use):  # a board for two CPUs with one has slots without a socket
        if len(labelled) == len(sockets):
            return dict(zip(labelled, sorted(sockets), strict=True))
    return {}
