"""The real service with two declared templates: prepared, restored after a kill, told of.

One service for the whole file, in the order of its life.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from service_process import PATIENCE_S, Json, Running, answered

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

T = TypeVar("T")

LONG_PATIENCE_S = 1200.0  # a start, two prompts; other work may have the cores
NAMES = ("clerk", "cook")
SYSTEM = {
    name: f"You are a {name}. "
    + " ".join(f"Rule {n}: item {n} of the {name} costs {n + 3} coins." for n in range(14))
    for name in NAMES
}
SETTINGS = """
[[model]]
slots = 4
context = 1024
[[template]]
name = "clerk"
system_file = "clerk.txt"
[[template]]
name = "cook"
system_file = "cook.txt"
"""


def patiently(condition: Callable[[], T | None], otherwise: str) -> T:
    deadline_s = time.monotonic() + LONG_PATIENCE_S
    while time.monotonic() < deadline_s:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(otherwise)


@pytest.fixture(scope="module")
def service(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / real_model.name).symlink_to(real_model)
    for name in NAMES:
        (home / f"{name}.txt").write_text(SYSTEM[name])
    (home / "settings.toml").write_text(SETTINGS)
    said = home / "said.log"
    command = [sys.executable, "-m", "workhorse", "up", "--no-measure", "--port", "0"]
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--config", str(home / "settings.toml")],
            stdout=output,
            stderr=output,
            env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"},
        )
    running = Running(process, home, said)
    try:
        url = re.compile(r"(http://127\.0\.0\.1:\d+)/v1")
        running.url = patiently(lambda: url.search(running.text()), "it never started")[1]
        yield running
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def tallies(service: Running) -> dict[str, Json]:
    _, state = service.get("/workhorse/state")
    return {one["name"]: one for one in state["templates"]}


def prepared(service: Running) -> dict[str, Json] | None:
    found = tallies(service)
    ready = all(one["state"] == "ready" and one["on_disk"] for one in found.values())
    return found if ready and len(found) == len(NAMES) else None


def until_prepared(service: Running) -> dict[str, Json]:
    return patiently(lambda: prepared(service), "the templates never got ready")


def chat(service: Running, name: str, question: str) -> Json:
    messages = [
        {"role": "system", "content": SYSTEM[name]},
        {"role": "user", "content": question},
    ]
    body = json.dumps({"messages": messages, "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"{service.url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    status, answer = answered(request)
    assert status == 200, answer
    timings: Json = answer["timings"]
    return timings


def killed(service: Running) -> None:
    before = service.engine_pid()
    os.kill(before, signal.SIGKILL)
    patiently(
        lambda: service.get("/healthz")[0] == 200 and service.engine_pid() != before,
        "the engine did not come back",
    )


def states(service: Running) -> list[Path]:
    return sorted((service.home / "states").iterdir())


def metric(service: Running, name: str, template: str) -> float:
    with urllib.request.urlopen(f"{service.url}/metrics") as page:
        lines: list[str] = page.read().decode().splitlines()
    (line,) = (one for one in lines if one.startswith(name) and f'template="{template}"' in one)
    return float(line.rpartition(" ")[2])


def test_both_are_prepared_when_idle(service: Running) -> None:
    found = until_prepared(service)
    assert all(150 < one["tokens"] < 900 for one in found.values())
    assert len(states(service)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_chat_after_a_kill_reuses_the_whole_template(service: Running, name: str) -> None:
    tokens = tallies(service)[name]["tokens"]
    saved_s = metric(service, "workhorse_template_saved_seconds_total", name)
    killed(service)
    until_prepared(service)  # from the disk at once, or when idle where that took too long
    timings = chat(service, name, "What costs 9 coins?")
    assert timings["cache_n"] == tokens
    assert timings["prompt_n"] < 40
    assert metric(service, "workhorse_template_saved_seconds_total", name) > saved_s
    assert tallies(service)[name]["hits"] == 1


def test_a_damaged_state_is_only_a_miss(service: Running) -> None:
    before = states(service)
    for path in before:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    killed(service)
    assert chat(service, "clerk", "What costs 5 coins?")["prompt_n"] > 100
    until_prepared(service)


def test_nothing_but_the_templates_is_on_the_disk(service: Running) -> None:
    secret = "The password of the vault is heliotrope."
    chat(service, "cook", secret)
    assert len(states(service)) == len(NAMES)
    kept = [path for path in service.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert kept
    assert not [path for path in kept if secret.encode() in path.read_bytes()]
