"""A model that is pulled by its name is served by its name, with the hub gone."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from file_server import FileServer
from hub_server import publish_hf

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

REFERENCE = "hf:maker/Small-GGUF"
DEADLINE_S = 120.0


def test_pull_then_up_then_an_answer(server: FileServer, tmp_path: Path, real_model: Path) -> None:
    repo = REFERENCE.partition(":")[2]
    environment = publish_hf(server, repo, {"small-Q4_0.gguf": real_model.read_bytes()})
    settings = {**os.environ, **environment, "WORKHORSE_HOME": str(tmp_path)}
    workhorse = (sys.executable, "-m", "workhorse")
    subprocess.run([*workhorse, "pull", REFERENCE], env=settings, check=True, timeout=DEADLINE_S)
    settings["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nobody answers there
    said = tmp_path / "said.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*workhorse, "up", REFERENCE, "--port", "0", "--no-measure", "--lang", "en"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=settings,
        )
    try:
        assert "content" in answer_of(address(process, said))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()


def address(process: subprocess.Popen[bytes], said: Path) -> str:
    """Where the service is, once it says that it is ready."""
    until_s = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < until_s:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/v1 ", said.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(said.read_text())


def answer_of(url: str) -> dict[str, object]:
    """The message that the service answers with."""
    ask = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps({"model": "any", **ask}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answered:
        message: dict[str, object] = json.load(answered)["choices"][0]["message"]
    return message
