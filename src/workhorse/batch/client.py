"""One request to the service at a time: what came back, or how nothing did."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from workhorse.batch.retry import Reply, retry_after
from workhorse.bench.service import Service, cause
from workhorse.units import MIB

CONNECT_S = 10.0
LOOK_S = 30.0  # for a page that takes no slot
ANSWER_BYTES_MAX = 64 * MIB
# In the gateway's metrics (`serve/gauges.py`).
RESTARTS, STATE = "workhorse_engine_restarts_total", "workhorse_engine_state"
OURS = (RESTARTS, STATE, "workhorse_slot_context_tokens")
PRIORITY = {"X-Priority": "batch"}  # those of people go first (`serve/proxy.py`)


class AwayError(Exception):
    """Nobody took the request."""


class LostError(Exception):
    """The connection broke while the service had the request."""


class SlowError(Exception):
    """No whole answer in the time that it had."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the service's metrics say of the model's engines; None: it does not say."""

    restarts: float | None = None
    ready: bool | None = None  # one of them at least
    whole: bool | None = None  # all of them are
    context_tokens: int | None = None


class Client:
    """Asks one service; each request on a connection of its own.

    A kept one may be closed by the service in the very moment in which it is used again, which
    would look as if the engine had died of the request.
    """

    def __init__(self, session: aiohttp.ClientSession, service: Service) -> None:
        self.session, self.service = session, service

    async def post(self, path: str, body: bytes, limit_s: float) -> Reply:
        """The answer to a request; raises `AwayError`, `LostError`, `SlowError`."""
        headers = {**self.service.headers, **PRIORITY, "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(limit_s),
                self.session.post(
                    self.service.url + path,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self.service.tls or True,
                ) as response,
            ):
                return Reply(
                    response.status,
                    await _whole(response),
                    retry_after(response.headers.get("Retry-After")),
                    response.headers.get("X-Request-Id"),
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise AwayError(cause(error)) from error
        except aiohttp.ClientError as error:
            raise LostError(cause(error)) from error
        except TimeoutError as error:
            raise SlowError from error
        except OSError as error:  # out of file descriptors, for one: nothing was sent
            raise AwayError(cause(error)) from error

    async def look(self) -> Seen | None:
        """How the engines are; None: the service itself does not answer."""
        status, page = await self.get("/metrics")
        if status is None:
            return None
        return read_metrics(page, self.service.model) if status == 200 else Seen()

    async def get(self, path: str) -> tuple[int | None, bytes]:
        """Status and body of a page; the status is None when nobody answers."""
        try:
            async with (
                asyncio.timeout(LOOK_S),
                self.session.get(
                    self.service.url + path,
                    headers=self.service.headers,
                    allow_redirects=False,
                    ssl=self.service.tls or True,
                ) as response,
            ):
                return response.status, await _whole(response)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None, b""

    async def context_tokens(self) -> int | None:
        """The context of one slot, by whichever page tells it; None: none does."""
        seen = await self.look()
        if seen is not None and seen.context_tokens:
            return seen.context_tokens
        props, models = _object(await self.get("/props")), _object(await self.get("/v1/models"))
        settings = props.get("default_generation_settings")
        if isinstance(settings, dict) and (found := _positive(settings.get("n_ctx"))):
            return found
        listed = models.get("data")
        for model in listed if isinstance(listed, list) else ():
            if isinstance(model, dict) and self.service.model in (None, model.get("id")):
                meta = model.get("meta")
                told = meta.get("n_ctx") if isinstance(meta, dict) else None
                return _positive(told) or _positive(model.get("max_model_len"))  # vLLM's
        return None


@asynccontextmanager
async def client_of(service: Service) -> AsyncIterator[Client]:
    """A client for the length of a job."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield Client(session, service)


def read_metrics(page: bytes, model: str | None) -> Seen:
    """What our gateway's metrics say of a model; all None for another service's."""
    restarts = context_tokens = None
    states: dict[str, float] = {}
    # The library reads letter by letter, and most of the page is histograms.
    ours = [line for line in page.decode(errors="replace").splitlines() if line.startswith(OURS)]
    try:
        families = list(text_string_to_metric_families("\n".join(ours) + "\n"))
    except (ValueError, IndexError):
        return Seen()
    for sample in (sample for family in families for sample in family.samples):
        if model is not None and sample.labels.get("model") != model:
            continue
        if sample.name == RESTARTS:
            restarts = (restarts or 0.0) + sample.value
        elif sample.name == STATE:
            states[sample.labels.get("state", "")] = sample.value
        else:
            context_tokens = int(sample.value)
    if not states:
        return Seen(restarts, context_tokens=context_tokens)
    ready = states.get("ready", 0)
    return Seen(restarts, ready > 0, ready == sum(states.values()), context_tokens)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for block in response.content.iter_chunked(256 * 1024):
        body += block
        if len(body) > ANSWER_BYTES_MAX:
            break  # cut, so that it is no JSON: nobody asked for as much
    return bytes(body)


def _object(answer: tuple[int | None, bytes]) -> Mapping[str, Any]:
    status, body = answer
    try:
        found = msgspec.json.decode(body) if status == 200 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
