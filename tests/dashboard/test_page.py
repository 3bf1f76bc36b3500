"""The dashboard in a headless Chromium: what a reader sees and can do."""

import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import scenes
from browser import Browser, Page, chromium, needs_chromium, tab
from scenes import MODEL, Scene, served

from running_fake import FakeEngine
from workhorse.serve.auth import Access
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key
from workhorse.text import Text

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

# What the browser says of a gateway that is gone, or went while the page asked it.
GONE = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
NASTY = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A fresh tab; at the end nothing in it may have complained but of a gateway that is gone."""
    async with tab(browser) as found:
        yield found
        assert [one for one in found.troubles if not any(end in one for end in GONE)] == []


async def shown(page: Page, url: str, *, language: str = "en-GB") -> None:
    """Open the dashboard and wait until it shows the service."""
    await page.speak(language)
    await page.open(f"{url}/")
    await page.until("document.getElementById('service')?.hidden === false")


# --- what it says --------------------------------------------------------------------------------


async def test_a_healthy_service(page: Page, tmp_path: Path) -> None:
    scene = scenes.healthy(tmp_path)
    assert scene.plan is not None
    assert scene.measured is not None
    async with served(scene) as url:
        await shown(page, url)
        await page.until("document.querySelectorAll('.chart svg').length >= 8")
        assert await page.text("#state") == "ready"
        assert await page.text("#models") == MODEL
        now = await page.text("#instruments")
        assert "Measured 60" in now
        assert "of the ceiling" in now
        assert "GPU 0 · Tesla V100-SXM2-32GB" in now
        plans = await page.text("#plans")
        for reason in scene.plan.reasons:
            assert reason.because.en.split(":")[0] in plans
        assert "15 GiB of 32 GiB planned" in plans
        assert "wiki-search" in await page.text("#usage_rows")
        assert "96 % / 230" in await page.text("#template_rows")
        assert "restarting" in await page.text("#event_rows")
        assert "Intel" in await page.text("#facts")
        assert await page.run("document.getElementById('alarms').hidden")


async def test_in_chinese_by_the_browsers_language_and_kept_when_switched(
    page: Page, tmp_path: Path
) -> None:
    async with served(scenes.alarmed(tmp_path)) as url:
        await shown(page, url, language="zh-CN")
        assert await page.run("document.documentElement.lang") == "zh-CN"
        assert await page.text("#state") == "就绪"
        assert "功耗上限" in await page.text("#alarms")
        await page.run("document.getElementById('language').click()")
        assert await page.text("#state") == "ready"
        assert "power cap" in await page.text("#alarms")
        assert "What runs and why" in await page.text("#plan")
        await shown(page, url, language="zh-CN")
        assert await page.text("#state") == "ready"


async def test_alarms_come_first_with_their_remedies(page: Page, tmp_path: Path) -> None:
    async with served(scenes.alarmed(tmp_path)) as url:
        await shown(page, url)
        first, second = await page.run(
            "[...document.querySelectorAll('#alarms_on .alarm')].map((a) => a.innerText)"
        )
        assert "GGGGGGGG" in first
        assert "Restart the engine with flash attention off." in first
        assert "sudo nvidia-smi -i 0 -pl 250" in second
        assert "power.limit: 100.00 W" in second
        assert await page.run("document.querySelector('#service section').id") == "alarms"
        assert await page.run("document.title") == f"(2) workhorse · {MODEL}"
        assert "slowed by: sw_power_cap" in await page.text("#instruments")


async def test_an_alarm_that_comes_and_goes_is_seen_without_a_reload(
    page: Page, tmp_path: Path
) -> None:
    scene = scenes.alarmed(tmp_path)
    alarms, scene.alarms = scene.alarms, ()
    async with served(scene) as url:
        await shown(page, url)
        assert await page.run("document.getElementById('alarms').hidden")
        scene.alarms = alarms[:1]
        await page.until("document.querySelectorAll('#alarms_on .alarm').length === 1")
        assert await page.run("document.querySelector('[aria-live] .alarm') !== null")
        scene.alarms = ()
        await page.until("document.getElementById('alarms').hidden")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("planning", "Looking at this machine and planning"),
        ("starting", "is loading"),
        ("restarting", "is being started again"),
        ("given_up", "is not started any more"),
        ("stopped", "is stopped"),
        ("quarantined", "quarantined"),
    ],
)
async def test_an_engine_that_is_not_ready(
    page: Page, tmp_path: Path, state: str, says: str
) -> None:
    scene = scenes.fresh(tmp_path, state)
    scene.reason = None if state == "planning" else scenes.ENDED
    async with served(scene) as url:
        await shown(page, url)
        told = await page.text("#conditions")
        assert says in told
        assert ("out-of-memory kill" in told) == (state != "planning")
        assert "points come within a minute" in await page.text("#curves")


async def test_the_gateway_goes_and_comes_back(page: Page, tmp_path: Path) -> None:
    scene = scenes.healthy(tmp_path)
    async with served(scene) as url:
        await shown(page, url)
    await page.until("!document.getElementById('lost').hidden")
    assert "has not answered since" in await page.text("#lost")
    port = int(url.rpartition(":")[2])
    async with served(scene, port=port):
        await page.until("document.getElementById('lost').hidden")
        assert await page.text("#state") == "ready"


# --- curves --------------------------------------------------------------------------------------


async def test_a_gap_stays_a_gap_and_values_are_told(page: Page, tmp_path: Path) -> None:
    async with served(scenes.healthy(tmp_path)) as url:
        await shown(page, url)
        await page.until("document.querySelectorAll('.chart svg').length >= 8")
        heat = "[...document.querySelectorAll('.chart')].find((c) => c.innerText.includes('°C'))"
        assert await page.run(f"{heat}.querySelectorAll('.curve').length") == 2
        assert await page.run(f"{heat}.querySelectorAll('.event').length") == 1
        label = await page.run(f"{heat}.querySelector('svg').getAttribute('aria-label')")
        assert "Temperature" in label
        assert "between" in label
        await page.run(f"{heat}.querySelector('svg').focus()")
        await page.key("ArrowLeft")
        last = await page.run(f"{heat}.querySelector('.readout').innerText")
        assert "°C" in last
        for _ in range(3):
            await page.key("ArrowLeft")
        assert await page.run(f"{heat}.querySelector('.readout').innerText") != last
        await page.key("Escape")
        assert await page.run(f"{heat}.querySelector('.readout')") is None
        await page.run(f"{heat}.scrollIntoView()")
        box = await page.run(
            f"(({{left, top, width}}) => [left + width / 2, top + 40])"
            f"({heat}.querySelector('svg').getBoundingClientRect())"
        )
        await page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        assert "°C" in await page.until(f"{heat}.querySelector('.readout')?.innerText")


async def test_another_range(page: Page, tmp_path: Path) -> None:
    async with served(scenes.healthy(tmp_path, minutes=70)) as url:
        await shown(page, url)
        await page.until("document.querySelectorAll('.chart svg').length >= 8")
        ticks = "document.querySelector('.chart svg').textContent"
        before = await page.run(ticks)
        await page.run("document.querySelector('#ranges input[value=\"86400\"]').click()")
        await page.until(f"{ticks} !== {json.dumps(before)}")
        assert await page.run("document.querySelectorAll('.band').length") > 0


# --- keys ---------------------------------------------------------------------------------------


async def test_a_key_is_asked_for_and_kept_in_this_tab_only(
    page: Page, tmp_path: Path, fake_engine: FakeEngine
) -> None:
    store = KeyStore(tmp_path / "service-1.sqlite")
    secret = store.add(Key("reader"), time.time())
    scene = scenes.healthy(tmp_path, fake_engine("--answer-tokens", "5"))
    async with served(scene, access=Access(store)) as url:
        await page.speak("en-GB")
        await page.open(f"{url}/")
        await page.until("document.getElementById('key')?.hidden === false")
        assert await page.run("document.activeElement.id") == "key_field"
        assert await page.run("document.getElementById('service').hidden")
        await page.type("no such key")
        await page.key("Enter")
        await page.until("document.getElementById('key_why').innerText.includes('not accept')")
        await page.type(secret)
        await page.key("Enter")
        await page.until("!document.getElementById('service').hidden")
        assert await page.run("document.getElementById('key').hidden")
        await say(page, "Hello")
        await page.until(
            "document.querySelector('.assistant .figures')?.innerText.includes('5 tok')"
        )
        kept = await page.run(
            "[JSON.stringify({...sessionStorage}), JSON.stringify({...localStorage}),"
            " document.cookie, location.href]"
        )
        assert secret in kept[0]
        assert not [place for place in kept[1:] if secret in place]
        await page.open(f"{url}/")
        await page.until("!document.getElementById('service').hidden")
        await page.run("document.getElementById('forget').click()")
        await page.until("document.getElementById('key')?.hidden === false")
        assert await page.run("JSON.stringify({...sessionStorage})") == "{}"
    page.troubles = [trouble for trouble in page.troubles if "401" not in trouble]


# --- the chat box --------------------------------------------------------------------------------


async def say(page: Page, words: str) -> None:
    await page.run("document.getElementById('chat_text').focus()")
    await page.type(words)
    await page.key("Enter")


async def test_an_answer_streams_with_its_figures(
    page: Page, tmp_path: Path, fake_engine: FakeEngine
) -> None:
    engine = fake_engine("--answer-tokens", "20", "--gap-ms", "5")
    async with served(scenes.healthy(tmp_path, engine)) as url:
        await shown(page, url)
        await say(page, "Hello")
        await page.until(
            "document.querySelector('.assistant .figures')?.innerText.includes('20 tok')"
        )
        figures = await page.text(".assistant .figures")
        assert "Time to first token" in figures
        assert "tok/s" in figures
        assert len(await page.text(".assistant pre")) > 20
        assert await page.text(".say.user pre") == "Hello"
        assert await page.run("document.getElementById('chat_stop').hidden")
        await page.run("document.getElementById('chat_new').click()")
        assert "time to first token" in await page.text("#chat_log")


async def test_an_answer_can_be_stopped(
    page: Page, tmp_path: Path, fake_engine: FakeEngine
) -> None:
    engine = fake_engine("--answer-tokens", "2000", "--gap-ms", "200")
    async with served(scenes.healthy(tmp_path, engine)) as url:
        await shown(page, url, language="zh-CN")
        await say(page, "你好")
        await page.until("document.querySelector('.assistant pre')?.innerText.length > 5")
        await page.run("document.getElementById('chat_stop').click()")
        await page.until(
            "document.querySelector('.assistant .figures').innerText.includes('已停止')"
        )
        assert not await page.run("document.getElementById('chat_send').hidden")


async def test_an_input_methods_enter_sends_nothing(page: Page, tmp_path: Path) -> None:
    async with served(scenes.healthy(tmp_path)) as url:
        await shown(page, url, language="zh-CN")
        await page.run(
            "document.getElementById('chat_text').dispatchEvent(new KeyboardEvent('keydown',"
            " {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"
        )
        await page.type("你好")
        assert await page.run("document.querySelector('.say')") is None


async def test_a_refusal_is_told_in_the_chat(page: Page, tmp_path: Path) -> None:
    scene = scenes.fresh(tmp_path, "given_up")
    async with served(scene, restart_wait_s=0.1) as url:
        await shown(page, url)
        await say(page, "Hello")
        await page.until("document.querySelector('.say.bad') !== null")
        assert "It fell over" in await page.text(".say.bad")
    page.troubles = [trouble for trouble in page.troubles if "503" not in trouble]


# --- what comes from elsewhere is text -----------------------------------------------------------


async def test_markup_from_elsewhere_is_shown_and_never_run(page: Page, tmp_path: Path) -> None:
    scene = scenes.alarmed(tmp_path)
    assert scene.plan is not None
    assert scene.usage is not None
    nasty = Text(NASTY, NASTY)
    alarm = scene.alarms[0]
    finding = replace(
        alarm.finding, seen=nasty, why=nasty, remedy=nasty, command=NASTY, evidence=(NASTY,)
    )
    scene.alarms = (replace(alarm, finding=finding, subject=NASTY),)
    scene.model_name, scene.reason = NASTY, nasty
    scene.backend.state = NASTY
    scene.plan = replace(
        scene.plan,
        model_name=NASTY,
        reasons=tuple(replace(r, value=NASTY, because=nasty) for r in scene.plan.reasons),
    )
    scene.usage = replace(scene.usage, keys=(replace(scene.usage.keys[0], name=NASTY),))
    async with served(scene) as url:
        await shown(page, url)
        assert await page.run("document.querySelectorAll('img, body script').length") == 0
        for part in ("#alarms", "#conditions", "#models", "#plans", "#usage_rows"):
            assert NASTY in await page.text(part)


# --- everybody can use it ------------------------------------------------------------------------


SCENES: dict[str, Callable[[Path], Scene]] = {
    "healthy": scenes.healthy,
    "alarmed": scenes.alarmed,
    "restarting": scenes.restarting,
    "planning": scenes.fresh,
}


@pytest.mark.parametrize("language", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("name", SCENES)
async def test_a_phone_never_scrolls_sideways(
    page: Page, tmp_path: Path, name: str, language: str
) -> None:
    async with served(SCENES[name](tmp_path)) as url:
        await page.resize(360, 740, phone=True)
        await shown(page, url, language=language)
        await page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        wide = await page.run(
            "[...document.querySelectorAll('body *')].filter((e) =>"
            " e.getBoundingClientRect().right > 360.5).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
        assert await page.run("document.documentElement.scrollWidth") <= 360


async def test_the_keyboard_reaches_everything_and_is_not_caught(
    page: Page, tmp_path: Path
) -> None:
    async with served(scenes.alarmed(tmp_path)) as url:
        await shown(page, url)
        await page.until("document.querySelectorAll('.chart svg').length >= 8")
        seen: list[str] = []
        for _ in range(80):
            await page.key("Tab")
            at = await page.run(
                "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
                " const r = e.getBoundingClientRect();"
                " const next = e.nextElementSibling && getComputedStyle(e.nextElementSibling);"
                " return [e.tagName, e.id || e.className.baseVal || e.textContent.slice(0, 20),"
                " s.outlineStyle !== 'none' || next?.outlineStyle === 'solid', r.height > 0]; })()"
            )
            if at[0] == "BODY":
                break
            seen.append(f"{at[0]} {at[1]}")
            assert at[2], f"no visible focus on {at}"
            assert at[3], at
        assert at[0] == "BODY", "the keyboard is caught"
        assert seen[0].startswith("A Skip")
        for wanted in ("BUTTON language", "TEXTAREA chat_text", "BUTTON chat_send"):
            assert wanted in seen
        assert sum(one.startswith("SUMMARY") for one in seen) >= 4


def axe_script() -> str:
    """axe-core, the accessibility checker; AXE_CORE names the file of another version."""
    if chosen := os.environ.get("AXE_CORE"):
        return Path(chosen).read_text(encoding="utf-8")
    return (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "language"), [("alarmed", "en-GB"), ("restarting", "zh-CN")])
async def test_axe_finds_nothing(
    page: Page, tmp_path: Path, name: str, language: str, scheme: str
) -> None:
    async with served(SCENES[name](tmp_path)) as url:
        await page.prefer(scheme)
        await page.ask("Page.setBypassCSP", enabled=True)  # for the checker alone
        await shown(page, url, language=language)
        await page.until("document.querySelectorAll('.chart svg').length >= 8")
        await page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        await page.run(axe_script() + "; 0")
        found: list[Any] = await page.run(
            "axe.run().then((r) => r.violations.map((v) =>"
            " [v.id, v.help, v.nodes.map((n) => n.target + ' ' + n.failureSummary)]))"
        )
        assert found == []
