"""Tells the user's own address of each alarm: a POST with a JSON body, tried again a while."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import aiohttp

from workhorse.codec import to_line
from workhorse.guard.judge import News

log = logging.getLogger("workhorse.guard")

ANSWER_WITHIN_S = 10.0
TRIES = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# News that waits while the address does not answer; the oldest goes first.
WAITING_MAX = 100


class Webhook:
    """Sends news to one address, one after the other, in the order in which it came.

    The body is `{"event": "raised" | "over", "service": URL, "alarm": Alarm}`. Any 2xx answer
    takes it; redirects are not followed. After six tries it is given up and logged.
    """

    def __init__(
        self,
        url: str | None,
        service: str = "",
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.url, self.service, self._sleep = url, service, sleep
        self._waiting: deque[News] = deque(maxlen=WAITING_MAX)
        self._came = asyncio.Event()

    def tell(self, news: News) -> None:
        """Send it as soon as what came before is sent; without an address nothing is sent."""
        if self.url is None:
            return
        self._waiting.append(news)
        self._came.set()

    async def run(self) -> None:
        """Send until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                await self._came.wait()
                while self._waiting:
                    await self._send(http, self._waiting.popleft())
                self._came.clear()

    async def _send(self, http: aiohttp.ClientSession, news: News) -> None:
        pause_s, why = FIRST_PAUSE_S, ""
        body, url = body_of(news, self.service), self.url
        if url is None:
            return  # taken away meanwhile
        for left in reversed(range(TRIES)):
            try:
                async with http.post(
                    url,
                    data=body,
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as answer:
                    if 200 <= answer.status < 300:
                        return
                    why = f"HTTP {answer.status}"
            # ValueError: a name that no resolver can ask for, such as one with too long a label.
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                why = str(error) or type(error).__name__
            if left:
                await self._sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        log.warning("the webhook did not take news of %s: %s", news.alarm.finding.code, why)


def body_of(news: News, service: str) -> bytes:
    """The JSON document that is sent."""
    return to_line({"event": news.kind, "service": service, "alarm": news.alarm}).encode()
