"""`workhorse up` as its user meets it: real engine, real model, real signals."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from workhorse.codec import from_json
from workhorse.records import Plan

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

DEADLINE_S = 300.0
MEASURED_S = 1200.0  # a standard measurement takes 12 s on two quiet cores, minutes on busy ones
ATTEMPTS = 5
UP = (sys.executable, "-m", "workhorse", "up")


@dataclass
class Service:
    """A running `workhorse up` and what it has said so far (stdout and stderr in one file)."""

    process: subprocess.Popen[bytes]
    said: Path
    url: str = ""
    clients: list[openai.OpenAI] = field(default_factory=list)

    def text(self) -> str:
        return self.said.read_text()

    def wait_for(self, pattern: str, wait_s: float = DEADLINE_S) -> re.Match[str]:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.text()):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"never said {pattern!r}:\n{self.text()}")

    def client(self) -> openai.OpenAI:
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600)
        self.clients.append(made)
        return made

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        (pid,) = children.split()
        return int(pid)


Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path, real_model: Path) -> Iterator[Start]:
    """`start("--no-measure")` runs `up` on the real model; waits until it is ready."""
    with ExitStack() as running:
        yield lambda *options: running.enter_context(running_service(tmp_path, real_model, options))


@contextmanager
def running_service(home: Path, model: Path, options: tuple[str, ...]) -> Iterator[Service]:
    said = home / "said.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*UP, str(model), "--port", "0", *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"},
        )
    service = Service(process, said)
    try:
        service.url = service.wait_for(r"(http://127\.0\.0\.1:\d+)/v1 ")[1]
        yield service
    finally:
        for client in service.clients:
            client.close()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()


def workhorse(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workhorse", *arguments],
        env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_main_job(start: Start, tmp_path: Path, real_model: Path) -> None:
    before = plan_of(tmp_path, real_model).forecast.decode_tokens_per_s
    service = start()
    assert "its first answer is sound" in service.text()
    client = service.client()
    (model,) = client.models.list().data
    answer = client.chat.completions.create(
        model=model.id,
        messages=[{"role": "user", "content": "Name three colours."}],
        max_tokens=40,
        temperature=0,
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    # Measuring starts when we have gone, and says predicted, measured and the ceiling.
    service.wait_for(r"decode, predicted +[\d.]+", MEASURED_S)
    service.wait_for(r"decode, measured +[\d.]+")
    service.wait_for(r"share of the ceiling +\d+ %")
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(timeout=DEADLINE_S) == 0
    with pytest.raises(openai.APIConnectionError):
        client.models.list()
    # What was measured teaches the next forecast.
    after = plan_of(tmp_path, real_model).forecast.decode_tokens_per_s
    assert before is not None
    assert after is not None
    assert (before.basis, after.basis) == ("estimated", "learned")


def plan_of(home: Path, model: Path) -> Plan:
    done = workhorse(home, "plan", str(model), "--json")
    assert done.returncode == 0, done.stderr
    return from_json(Plan, done.stdout, what="plan")


def test_the_engine_dies_in_a_stream_and_comes_back(start: Start) -> None:
    service = start("--no-measure")
    client = service.client()
    stream = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Tell a long story."}],
        stream=True,
        max_tokens=2000,
        extra_body={"ignore_eos": True},
    )
    pieces = iter(stream)
    for _ in range(5):
        next(pieces)
    killed = service.engine_pid()
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(openai.APIError):
        for _ in pieces:
            pass
    # The port never closed: this one waits for the restart and is served.
    again = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Name a colour."}], max_tokens=5
    )
    assert again.choices[0].message.content
    assert service.engine_pid() != killed
    service.wait_for("the engine is being restarted")
    service.wait_for("the engine is ready again")


def test_killed_workhorse_takes_the_engine_with_it(start: Start) -> None:
    service = start("--no-measure")
    engine = service.engine_pid()
    service.process.kill()
    service.process.wait()
    deadline = time.monotonic() + DEADLINE_S
    while is_alive(engine) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(engine)


def is_alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # none of a zombie
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_measuring_gives_way_to_a_client(start: Start) -> None:
    for _ in range(ATTEMPTS):
        service = start()
        client = service.client()
        # Ask again and again until a request falls into the measurement.
        while not re.search("measuring waits|share of the ceiling", service.text()):
            time.sleep(3.0)  # longer than the quiet that measuring waits for
            client.completions.create(model="any", prompt="One, two,", max_tokens=4)
        if "measuring waits" in service.text():
            break
        # We had to wait for our turn, and it was measured in full before a client came.
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(timeout=DEADLINE_S) == 0
    service.wait_for("measuring waits: a client is being served")
    service.wait_for("share of the ceiling", MEASURED_S)


def test_a_dry_run_starts_nothing(tmp_path: Path, real_model: Path) -> None:
    done = workhorse(
        tmp_path, "up", str(real_model), "--dry-run", "--context", "4096", "--slots", "2"
    )
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-1]
    assert "--ctx-size 8192" in command
    assert "--parallel 2" in command
    assert str(real_model) in command
    assert not (tmp_path / "logs").exists()


def test_a_dry_run_in_json(tmp_path: Path, real_model: Path) -> None:
    done = workhorse(tmp_path, "up", str(real_model), "--dry-run", "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    plan = from_json(Plan, json.dumps(document["plan"]), what="plan")
    assert plan.model_path == str(real_model)
    assert document["launch"]["argv"][: len(plan.engine.command)] == list(plan.engine.command)


def test_a_taken_port_is_named_with_its_owner(tmp_path: Path, real_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = workhorse(tmp_path, "up", str(real_model), "--port", str(port))
    assert done.returncode == 3
    assert str(port) in done.stderr
    assert str(os.getpid()) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.gguf", None, "none.gguf"),
        ("page.gguf", b"<!DOCTYPE html><html>not found</html>", "page.gguf"),
        ("cut.gguf", b"GGUF\x03\x00\x00\x00", "cut.gguf"),
    ],
)
def test_what_is_no_model_is_told_in_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = workhorse(tmp_path, "up", str(tmp_path / name), "--port", "0")
    assert done.returncode in (1, 3)
    assert words in done.stderr
    assert "→" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_does_not_start_shows_its_log(tmp_path: Path, real_model: Path) -> None:
    broken = tmp_path / "llama-server"
    broken.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--help) printf "%s\\n" "--ctx-size N" "--parallel N" "--model F" "--port N";;\n'
        "--version) echo version: 1;;\n"
        '*) echo "0.00.010.000 E load: unknown model architecture: qwen9" >&2; exit 1;;\n'
        "esac\n"
    )
    broken.chmod(0o755)
    done = workhorse(tmp_path, "up", str(real_model), "--port", "0", "--engine", str(broken))
    assert done.returncode == 1
    assert "does not know the model's architecture" in done.stderr
    assert "qwen9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, real_model: Path) -> None:
    done = workhorse(
        tmp_path, "up", str(real_model), "--port", "0", "--context", "100000000", "--slots", "64"
    )
    assert done.returncode == 3
    assert "smallest settings" in done.stderr
    assert not (tmp_path / "logs").exists()


def test_a_damaged_store_costs_the_learning_and_not_the_service(
    tmp_path: Path, real_model: Path
) -> None:
    (tmp_path / "measurements-1.sqlite").write_bytes(b"not a database" * 100)
    plan = plan_of(tmp_path, real_model)
    doubts = [f.seen.en for f in plan.verdict.findings if f.code == "probe.doubt"]
    assert any("measurements-1.sqlite cannot be used" in doubt for doubt in doubts)


def test_a_service_outlives_the_reader_of_its_output(tmp_path: Path, real_model: Path) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [*UP, str(real_model), "--port", "0"],
        stdout=write_end,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "WORKHORSE_HOME": str(tmp_path)},
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as said:
            assert "/v1" in "".join(said.readline() for _ in range(2))
        with sqlite_of(tmp_path) as store:  # the measurement's table found no reader, and yet
            assert store.execute("SELECT count(*) FROM measurement").fetchone() == (1,)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=DEADLINE_S) == 0


@contextmanager
def sqlite_of(home: Path) -> Iterator[sqlite3.Connection]:
    """The store, once a measurement is in it."""
    path, deadline = home / "measurements-1.sqlite", time.monotonic() + MEASURED_S
    while not has_rows(path) and time.monotonic() < deadline:
        time.sleep(0.2)
    with closing(sqlite3.connect(path)) as store:
        yield store


def has_rows(path: Path) -> bool:
    """Whether there is a measurement; the table may come before it, and the file before both."""
    if not path.exists():
        return False
    with closing(sqlite3.connect(path)) as store, suppress(sqlite3.OperationalError):
        return bool(store.execute("SELECT count(*) FROM measurement").fetchone()[0])
    return False


def test_without_network_a_second_start_works(tmp_path: Path, real_model: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / real_model.name).symlink_to(real_model)
    offline = {"PIP_NO_INDEX": "1", "https_proxy": "http://127.0.0.1:9", "PIP_FIND_LINKS": ""}
    done = subprocess.run(
        [*UP, "--dry-run"],
        env={**os.environ, **offline, "WORKHORSE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
