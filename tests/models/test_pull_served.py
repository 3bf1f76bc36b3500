"""A model that is pulled by its name is served by its name, with the hub gone."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from file_server import FileServer
from hub_server import publish_hf
from served import DEADLINE_S, served

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

REFERENCE = "hf:maker/Small-GGUF"


def test_pull_then_up_then_an_answer(server: FileServer, tmp_path: Path, real_model: Path) -> None:
    repo = REFERENCE.partition(":")[2]
    environment = publish_hf(server, repo, {"small-Q4_0.gguf": real_model.read_bytes()})
    settings = {**os.environ, **environment, "WORKHORSE_HOME": str(tmp_path)}
    pull = (sys.executable, "-m", "workhorse", "pull", REFERENCE)
    subprocess.run(pull, env=settings, check=True, timeout=DEADLINE_S)
    settings["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nobody answers there
    with served(REFERENCE, tmp_path / "said.txt", env=settings) as url:
        assert "content" in answer_of(url)


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
