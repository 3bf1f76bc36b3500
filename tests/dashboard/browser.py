"""A headless Chromium, driven by the DevTools protocol, and one page in it."""

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PATIENCE_S = 240.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here (Debian: apt-get install chromium)"
)

Json = dict[str, Any]


class PageError(AssertionError):
    """A script in the page threw."""


@dataclass
class Browser:
    """The connection to one browser."""

    socket: aiohttp.ClientWebSocketResponse
    waiting: dict[int, asyncio.Future[Json]] = field(default_factory=dict)
    listeners: dict[str, Callable[[str, Json], None]] = field(default_factory=dict)
    count: int = 0

    async def ask(self, method: str, session: str | None = None, **params: Any) -> Json:
        self.count += 1
        number = self.count
        reply = self.waiting[number] = asyncio.get_running_loop().create_future()
        said: Json = {"id": number, "method": method, "params": params}
        await self.socket.send_json(said | ({"sessionId": session} if session else {}))
        answer = await asyncio.wait_for(reply, PATIENCE_S)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        result: Json = answer["result"]
        return result

    async def listen(self) -> None:
        async for message in self.socket:
            said = json.loads(message.data)
            if "id" in said:
                if not (reply := self.waiting.pop(said["id"])).done():
                    reply.set_result(said)
            elif listener := self.listeners.get(said.get("sessionId", "")):
                listener(said["method"], said["params"])
        for reply in self.waiting.values():  # nobody is there any more who could answer
            if not reply.done():
                reply.set_exception(PageError("the browser has gone"))


@dataclass
class Page:
    """One tab. `troubles`: what its console, its scripts and its security policy complained of."""

    browser: Browser
    session: str
    troubles: list[str] = field(default_factory=list)
    loads: int = 0

    def heard(self, method: str, params: Json) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.troubles.append(details.get("exception", {}).get("description", str(details)))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.troubles.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.troubles.append(str(params["args"]))
            case "Page.loadEventFired":
                self.loads += 1

    async def ask(self, method: str, **params: Any) -> Json:
        return await self.browser.ask(method, self.session, **params)

    async def open(self, url: str) -> None:
        before = self.loads
        await self.ask("Page.navigate", url=url)
        await wait(lambda: self.loads > before)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise PageError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not (value := await self.run(script)):  # noqa: ASYNC110 - the page tells no event
                await asyncio.sleep(0.05)
        return value

    async def text(self, selector: str) -> str:
        found = await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    async def key(self, key: str, *, shift: bool = False) -> None:
        """Press and let go."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, " ": 32}
        same = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": codes[key],
            "modifiers": 8 if shift else 0,
        }
        text = {"Enter": "\r", " ": " "}.get(key)
        down = "keyDown" if text else "rawKeyDown"
        await self.ask(
            "Input.dispatchKeyEvent", type=down, **same, **({"text": text} if text else {})
        )
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **same)

    async def type(self, words: str) -> None:
        await self.ask("Input.insertText", text=words)

    async def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    async def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.ask("Emulation.setEmulatedMedia", features=features)

    async def speak(self, language: str) -> None:
        """The browser's language, for pages opened from now on."""
        agent = await self.run("navigator.userAgent")
        await self.ask("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save what the page looks like as a PNG."""
        found = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


async def wait(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - of files and a browser
            await asyncio.sleep(0.02)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            told = Path(profile) / "DevToolsActivePort"
            await wait(lambda: told.exists() and len(told.read_text().split("\n")) > 1)
            port, path = told.read_text().split("\n")[:2]
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0) as socket,
            ):
                browser = Browser(socket)
                listening = asyncio.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    with suppress(Exception):
                        await browser.ask("Browser.close")
                    await asyncio.wait([listening])
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


@asynccontextmanager
async def tab(browser: Browser) -> AsyncIterator[Page]:
    """A fresh page with storage of its own."""
    context = (await browser.ask("Target.createBrowserContext"))["browserContextId"]
    made = await browser.ask("Target.createTarget", url="about:blank", browserContextId=context)
    attached = await browser.ask("Target.attachToTarget", targetId=made["targetId"], flatten=True)
    page = Page(browser, attached["sessionId"])
    browser.listeners[page.session] = page.heard
    for domain in ("Page", "Runtime", "Log"):
        await page.ask(f"{domain}.enable")
    await page.resize(1280, 900)
    try:
        yield page
    finally:
        del browser.listeners[page.session]
        await browser.ask("Target.disposeBrowserContext", browserContextId=context)
