"""The dashboard's routes: the page and its files, the state, the history, a board for Grafana."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

from aiohttp import web

from workhorse.errors import AppError
from workhorse.records import Alarm, Reading
from workhorse.serve.history import History
from workhorse.serve.points import UNITS, Event
from workhorse.serve.refusal import json_response, refusal
from workhorse.serve.state import Known, UsageTold, service_state
from workhorse.serve.templates import Tally

# Nothing from elsewhere, no inline code, and no string ever becomes markup (Trusted Types):
# what a model, a client or a log says is text.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
PAGE = "index.html"
# The page and its files hold nothing of this service: they are served without a key, so that
# the page can ask for one.
OPEN_TO_ALL = ("/", "/dashboard/{name}")

LARGEST_FIGURES_ASKED = 20
USAGE_S = 10.0  # how old the usage may be: it is read from a file


class Dashboard:
    """What each of the dashboard's routes does; everything that it shows is asked for then.

    `usage` blocks (it reads a file). `history` None: nothing is kept, and nothing is drawn.
    """

    def __init__(
        self,
        known: Callable[[], Sequence[Known]],
        *,
        reading: Callable[[], Reading | None] = lambda: None,
        alarms: Callable[[], Sequence[Alarm]] = tuple,
        templates: Callable[[], Sequence[Tally]] = tuple,
        usage: Callable[[], UsageTold | None] = lambda: None,
        history: History | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._known = known
        self._reading = reading
        self._alarms = alarms
        self._templates = templates
        self._usage = usage
        self._history = history
        self._clock = clock
        self._since_unix_s = clock()
        self._slow: tuple[float, UsageTold | None, tuple[Event, ...]] | None = None
        self._files = page_files()

    def table(self) -> list[web.RouteDef]:
        """Every route of the dashboard."""
        return [
            web.get("/", self._page),
            web.get("/dashboard/{name}", self._file),
            web.get("/workhorse/state", self._state),
            web.get("/workhorse/history", self._past),
        ]

    async def _page(self, _: web.Request) -> web.Response:
        return self._answer(PAGE)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._files:
            raise web.HTTPNotFound(text=f"There is no file {name[:80]!r} here.")
        return self._answer(name)

    def _answer(self, name: str) -> web.Response:
        kind = KINDS[name[name.rindex(".") :]]
        return web.Response(
            body=self._files[name], content_type=kind, charset="utf-8", headers=HEADERS
        )

    async def _state(self, request: web.Request) -> web.Response:
        """The state; without `about` when the reader's `known` revision is still the one."""
        usage, events = await self._slowly()
        state = service_state(
            self._known(),
            at_unix_s=self._clock(),
            since_unix_s=self._since_unix_s,
            reading=self._reading(),
            alarms=self._alarms(),
            events=events,
            usage=usage,
            templates=self._templates(),
            reader_knows=request.query.get("known"),
        )
        return _fresh(json_response(state))

    async def _slowly(self) -> tuple[UsageTold | None, tuple[Event, ...]]:
        """What lies in files, at most `USAGE_S` old; what cannot be read is left out."""
        now_s = self._clock()
        if self._slow is None or not 0 <= now_s - self._slow[0] < USAGE_S:
            usage, events = await asyncio.to_thread(self._read_files)
            self._slow = (now_s, usage, events)
        return self._slow[1], self._slow[2]

    def _read_files(self) -> tuple[UsageTold | None, tuple[Event, ...]]:
        usage: UsageTold | None = None
        events: tuple[Event, ...] = ()
        try:
            usage = self._usage()
            events = self._history.events() if self._history else ()
        except AppError:
            pass  # `/workhorse/history` and the log say so
        return usage, events

    async def _past(self, request: web.Request) -> web.Response:
        """`figure` (several), `since` and `until` in Unix seconds, `points` at most."""
        figures = request.query.getall("figure", [])
        unknown = [figure for figure in figures if figure not in UNITS]
        if not figures or unknown or len(figures) > LARGEST_FIGURES_ASKED:
            asked = f"not {unknown[0][:40]!r}" if unknown else f"1 to {LARGEST_FIGURES_ASKED}"
            return _wrong(f"Ask for figure={', '.join(UNITS)}: {asked}.")
        now = self._clock()
        try:
            until = _number(request.query, "until", now)
            since = _number(request.query, "since", until - 3600)
            points = int(_number(request.query, "points", 300))
        except ValueError as error:
            return _wrong(str(error))
        if not 0 <= since < until <= now + 366 * 86_400 or not 1 <= points <= 10_000:
            return _wrong("`since` comes before `until`, and `points` is 1 to 10000.")
        if self._history is None:
            return json_response(refusal(503, "This service keeps no history."), status=503)
        read = self._history.read
        return _fresh(json_response(await asyncio.to_thread(read, figures, since, until, points)))


def page_files() -> dict[str, bytes]:
    """The page and its files by name."""
    folder = files(__package__)
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if entry.name.endswith(tuple(KINDS))
    }


def _number(query: Mapping[str, str], name: str, otherwise: float) -> float:
    """A finite number of the query; ValueError with the name and what was sent."""
    if (sent := query.get(name)) is None:
        return otherwise
    try:
        value = float(sent)
    except ValueError:
        value = float("nan")
    if not -1e12 < value < 1e12:
        raise ValueError(f"{name}={sent[:40]!r} is no number that can be used.")
    return value


def _wrong(message: str) -> web.Response:
    return json_response(refusal(400, message), status=400)


def _fresh(response: web.Response) -> web.Response:
    response.headers["Cache-Control"] = "no-store"
    return response
