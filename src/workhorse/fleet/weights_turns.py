"""Who of the fleet fetches a file from whom: every node that has it gives it on. Pure.

Times are seconds of any clock that does not go back.
"""

from dataclasses import dataclass, field

# Two at a time share a holder's line. One at a time would be a little faster (forty nodes: 6 times
# one transfer, against 8), but a single slow node would then hold a holder up for all others.
GIVES_AT_ONCE = 2
# A node renews its turn while bytes come; one that died gives its place up after this.
LEASE_S = 90.0
WAIT_S = 2.0
# Whoever has the key may ask, but not fill our memory.
FILES_MAX = 4096
NODES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Turn:
    """Where to fetch from; `url` None: everybody who has the file is busy, ask again."""

    url: str | None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fetching:
    """One node that fetches one file, for those who look on."""

    file: str
    node: str
    url: str
    done_bytes: int


@dataclass(slots=True)
class _Lease:
    url: str
    until_s: float
    done_bytes: int = 0


@dataclass(slots=True)
class _File:
    """One file: who has it, by address, and who fetches it, by node."""

    holders: dict[str, None] = field(default_factory=dict)  # in the order in which they came
    leases: dict[str, _Lease] = field(default_factory=dict)


class Turns:
    """Hands out the holders of each file, `GIVES_AT_ONCE` nodes to each at a time.

    The origin has every file and stays; any other holder is dropped when a node says that it
    failed. Nodes are preferred to the origin, which has the requests of users to answer.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._files: dict[str, _File] = {}

    def ask(self, file: str, node: str, now_s: float, *, failed: str | None = None) -> Turn:
        """The turn of `node`, that asks again when it has to wait and after a holder `failed`."""
        known = self._file(file)
        known.leases.pop(node, None)
        if failed is not None and failed != self._origin:
            known.holders.pop(failed, None)
        gives = self._gives(known, now_s)
        if len(known.leases) >= NODES_MAX:
            return Turn(None, WAIT_S)
        others = [one for one in (*known.holders, self._origin) if one != failed]
        free = [one for one in others if gives.get(one, 0) < GIVES_AT_ONCE]
        if not free and others:
            return Turn(None, WAIT_S)
        # With nobody else left, the origin may have failed for a moment only.
        url = min(free, key=lambda one: gives.get(one, 0) + (one == self._origin)) if free else None
        url = url or self._origin
        known.leases[node] = _Lease(url, now_s + LEASE_S)
        return Turn(url)

    def keep(self, file: str, node: str, done_bytes: int, now_s: float) -> None:
        """The node still fetches, and has so many bytes."""
        lease = self._file(file).leases.get(node)
        if lease is not None:
            lease.until_s, lease.done_bytes = now_s + LEASE_S, done_bytes

    def done(self, file: str, node: str, url: str | None) -> None:
        """The node has the file, and gives it on at `url` when it can."""
        known = self._file(file)
        known.leases.pop(node, None)
        if url is not None and url != self._origin and len(known.holders) < NODES_MAX:
            known.holders[url] = None

    def fetching(self, now_s: float) -> tuple[Fetching, ...]:
        """Who fetches what from whom now."""
        for known in self._files.values():
            self._gives(known, now_s)
        return tuple(
            Fetching(file, node, lease.url, lease.done_bytes)
            for file, known in self._files.items()
            for node, lease in known.leases.items()
        )

    def holders(self, file: str) -> tuple[str, ...]:
        """Who has the file beside the origin."""
        return tuple(self._file(file).holders)

    def _file(self, file: str) -> _File:
        if file not in self._files and len(self._files) >= FILES_MAX:
            return _File()
        return self._files.setdefault(file, _File())

    def _gives(self, known: _File, now_s: float) -> dict[str, int]:
        """How many nodes each holder serves; leases that have run out are forgotten."""
        for node in [n for n, lease in known.leases.items() if lease.until_s < now_s]:
            del known.leases[node]
        gives: dict[str, int] = {}
        for lease in known.leases.values():
            gives[lease.url] = gives.get(lease.url, 0) + 1
        return gives
