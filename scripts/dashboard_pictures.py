"""Take the pictures of docs/dashboard*.md from a running service: URL, then nothing else.

Start `workhorse up`, wait for its measurement, let some clients ask for a quarter of an hour, then
run this; it asks the model one question in the page's own box. Needs Chromium.
"""

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "dashboard"))

from browser import Browser, chromium, tab  # type: ignore[import-not-found]  # noqa: E402

# File, the reader's language and preference, the question.
PICTURES = (
    ("dashboard.png", "en-GB", "light", "Why are old servers still useful? Two sentences."),
    ("dashboard.zh.png", "zh-CN", "dark", "Name three colours."),
)
ANSWERED = (
    "document.getElementById('chat_stop').hidden && "
    "document.querySelector('.assistant .figures')?.innerText.includes('tok/s')"
)
NEXT_POINTS_S = 11.0  # the curves are read anew every ten seconds


async def take(browser: Browser, url: str, name: str, language: str, scheme: str, ask: str) -> None:
    """One picture of the page's upper part, with an answer in its chat box."""
    async with tab(browser) as page:
        await page.speak(language)
        await page.prefer(scheme)
        await page.resize(1366, 1000)
        await page.open(f"{url}/")
        await page.until("document.getElementById('service')?.hidden === false")
        await page.run("document.getElementById('chat_text').focus()")
        await page.type(ask)
        await page.key("Enter")
        await page.until(ANSWERED)
        await page.run("document.activeElement.blur()")
        await asyncio.sleep(NEXT_POINTS_S)
        await page.picture(ROOT / "docs" / name, whole=False)
        print(f"docs/{name}: {(ROOT / 'docs' / name).stat().st_size / 1000:.0f} kB")


async def main(url: str) -> None:
    """Take them all."""
    async with chromium() as browser:
        for name, language, scheme, question in PICTURES:
            await take(browser, url.rstrip("/"), name, language, scheme, question)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
