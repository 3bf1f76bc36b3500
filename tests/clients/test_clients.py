"""Clients that people have, run as docs/clients.md shows them.

One whose package is installed beside the tests runs with every test run; the others take a minute
or more to install, so they run when WORKHORSE_TEST_CLIENTS names a folder to install them in.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_client import fake
from stand_ins import StandInBackend

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Roster, Served
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
SHOWN_URL, SHOWN_KEY = "http://127.0.0.1:8080", "wh-…"
INSTALL_S = RUN_S = 600.0
# By the heading on the page: the package, as it was in November 2026, and what it is imported as.
PYTHON = {
    "OpenAI, Python": ("openai>=3", "openai"),
    "Images": ("openai>=3", "openai"),
    "Anthropic, Python": ("anthropic==2.14.0", "anthropic"),
    "LangChain": ("langchain-openai==1.7.4", "langchain_openai"),
    "LlamaIndex": ("llama-index-llms-openai-like==0.8.1", "llama_index.llms.openai_like"),
    "litellm": ("litellm==1.110.2", "litellm"),
}
NODE_PACKAGE = "openai@7.59.0"
LLM_PACKAGE = "llm==0.36"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1300)]


class Service:
    """A gateway with a key before a fake engine."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key

    def ours(self, shown: str) -> str:
        """What the page shows, with this service's address and key."""
        assert SHOWN_URL in shown
        assert SHOWN_KEY in shown
        return shown.replace(SHOWN_URL, self.url).replace(SHOWN_KEY, self.key)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    store = KeyStore(tmp_path / "service.sqlite")
    key = store.add(Key("ann"), time.time())
    async with fake(slots=4) as engine:
        served = Served("horse", StandInBackend(engine.url))
        opened = Gateway(build_app(Roster((served,)), activity=Activity(), access=Access(store)))
        await opened.start(port=0)
        try:
            yield Service(opened.url or "", key)
        finally:
            await opened.stop()


def shown(heading: str, language: str) -> str:
    """The program below a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, heading
    return found[1]


async def run(*command: str | Path, within_s: float = RUN_S, **environ: str) -> str:
    """A program's output; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "NO_PROXY": "127.0.0.1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), within_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()[-3000:]
    return out.decode()


async def installed(package: str, name: str) -> Path:
    """The Python of an environment with a package; skips without a place for it."""
    place = os.environ.get("WORKHORSE_TEST_CLIENTS")
    if place is None:
        pytest.skip(f"{package} is not installed; WORKHORSE_TEST_CLIENTS=FOLDER installs it there")
    folder = Path(place) / re.sub(r"\W+", "-", name)
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        await run(sys.executable, "-m", "venv", "--clear", folder, within_s=INSTALL_S)
        await run(python, "-m", "pip", "install", "-q", package, within_s=INSTALL_S)
        (folder / "done").touch()
    return python


def is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("heading", PYTHON)
async def test_python(service: Service, heading: str, tmp_path: Path) -> None:
    package, module = PYTHON[heading]
    python = Path(sys.executable) if is_here(module) else await installed(package, heading)
    program = tmp_path / "program.py"
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG")
    text = service.ours(shown(heading, "python")).replace("photo.png", str(photo))
    program.write_text(text, encoding="utf-8")
    said = await run(python, program, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert len(said.split()) > 3, said


async def test_node(service: Service, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm here")
    place = os.environ.get("WORKHORSE_TEST_CLIENTS")
    if place is None:
        pytest.skip(f"{NODE_PACKAGE} is not installed; WORKHORSE_TEST_CLIENTS=FOLDER installs it")
    folder = Path(place) / "node"
    if not (folder / "node_modules" / "openai").exists():
        folder.mkdir(parents=True, exist_ok=True)
        await run(npm, "install", "--silent", "--prefix", folder, NODE_PACKAGE, within_s=INSTALL_S)
    program = folder / f"program-{os.getpid()}.mjs"
    program.write_text(service.ours(shown("OpenAI, Node", "javascript")), encoding="utf-8")
    try:
        said = await run("node", program)
    finally:
        program.unlink()
    assert len(said.split()) > 3, said


async def test_llm(service: Service, tmp_path: Path) -> None:
    python = await installed(LLM_PACKAGE, "llm")
    models = service.ours(shown("llm", "yaml"))
    (tmp_path / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    program = ("-m", "llm", "-m", "workhorse", "-o", "max_tokens", "20", "Name three colours.")
    said = await run(python, *program, LLM_USER_PATH=str(tmp_path))
    assert len(said.split()) > 3, said


def test_every_program_of_the_page_is_run() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    # Batches: test_batch_client.py
    assert set(headings) == {*PYTHON, "Batches", "OpenAI, Node", "llm"}


def test_both_languages_show_the_same_programs() -> None:
    pages = [PAGE, PAGE.with_name("clients.zh.md")]
    english, chinese = (
        re.findall(r"```.*?```", page.read_text(encoding="utf-8"), re.DOTALL) for page in pages
    )
    assert english == chinese
    assert len(english) == len(PYTHON) + 3
