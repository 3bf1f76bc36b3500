"""How a pull is done, and how often a connection tries again before it gives up."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from workhorse.models.hub import Digest
from workhorse.models.refusals import shown
from workhorse.models.remote import Interrupted, Unreachable
from workhorse.text import Text
from workhorse.units import show_bytes, show_duration

T = TypeVar("T")

CONNECTIONS = 4
CONNECTIONS_MAX = 16
TRIES = 5  # of one connection in a row without a new byte
FIRST_PAUSE_S = 0.5  # doubled after every try
LONGEST_PAUSE_S = 30.0
# Hubs count requests in windows of five minutes (Hugging Face's rate limits, 2026-11).
LONGEST_ASKED_S = 600.0
STALL_S = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file: its name below the folder, where it is, and what is known of it."""

    name: str
    addresses: tuple[str, ...]
    size_bytes: int | None = None
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How to fetch, and whom to tell. `pause` None: waits that end when the work does."""

    headers: Mapping[str, str]
    connections: int = CONNECTIONS
    tell: Callable[[Text], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda _done, _total: None
    stall_s: float = STALL_S
    pause: Callable[[float], None] | None = None
    direct: bool = False  # within one network: no proxy of the environment is between


class GivenUp(Exception):
    """One connection got nothing more in TRIES tries."""

    def __init__(self, error: Interrupted) -> None:
        super().__init__(error.reason)
        self.error = error


def patiently(
    ask: Callable[[], T],
    manner: Manner,
    stop: threading.Event,
    at: Callable[[], int] = lambda: 0,
) -> T:
    """What `ask` returns, tried again after what may pass; `at` is how far it has come.

    Raises GivenUp after TRIES tries in a row without a new byte.
    """
    failures = 0
    while True:
        before = at()
        try:
            return ask()
        except Interrupted as error:
            failures = 1 if at() > before else failures + 1
            if failures >= TRIES or error.wait_s > LONGEST_ASKED_S or stop.is_set():
                raise GivenUp(error) from error
            own_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
            _wait(max(own_s, error.wait_s), error, manner, stop)


def _wait(wait_s: float, error: Interrupted, manner: Manner, stop: threading.Event) -> None:
    if wait_s > LONGEST_PAUSE_S:
        wait = show_duration(wait_s)
        manner.tell(
            Text(
                f"The server asks us to wait {wait} ({error.reason}).",
                f"服务器要求等待 {wait}（{error.reason}）。",
            )
        )
    (manner.pause or stop.wait)(wait_s)


def given_up(wanted: Wanted, error: Interrupted, done_bytes: int) -> Unreachable:
    """The error for the user when no connection gets on."""
    place = shown(urlsplit(wanted.addresses[0]).netloc)
    if error.wait_s > LONGEST_ASKED_S:
        wait = show_duration(error.wait_s)
        return Unreachable(
            Text(
                f"{place} is asked too often: it wants us to wait {wait} ({error.reason}).",
                f"对 {place} 的请求过于频繁：对方要求等待 {wait}（{error.reason}）。",
            ),
            Text(
                f"Run the command again in {wait}: it goes on where it stopped.",
                f"请在 {wait} 后重新运行，将从中断处继续。",
            ),
        )
    name, done, why = shown(wanted.name), show_bytes(done_bytes), shown(error.reason)
    return Unreachable(
        Text(
            f"{name} stopped at {done}, and {TRIES} tries brought nothing more from {place}: "
            f"{why}.",
            f"{name} 停在 {done}，向 {place} 重试 {TRIES} 次仍无进展：{why}。",
        ),
        Text(
            "Check the network and run the command again: it goes on where it stopped.",
            "请检查网络后重新运行，将从中断处继续。",
        ),
    )
