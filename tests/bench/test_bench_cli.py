"""`workhorse bench` as a user meets it."""

import asyncio
import json
import signal
import socket
import ssl
import sys
from pathlib import Path

import pytest
import trustme
from plain_service import PlainService, serving

from running_fake import FakeEngine
from workhorse.cli import main
from workhorse.codec import from_json
from workhorse.config import places
from workhorse.records import Measurement
from workhorse.store import Store


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKHORSE_API_KEY", raising=False)


@pytest.fixture
def dead_url() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))


def test_a_table_with_the_figures(
    fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine("--ttft-ms", "40", "--gap-ms", "10")
    assert main(["bench", url, "--streams", "1,3", "--output-tokens", "20", "--lang", "en"]) == 0
    out, err = capsys.readouterr()
    assert "prompts of 768 tokens, answers of 20" in out
    first_cells = [line.split()[0] for line in out.splitlines() if line.split()]
    assert {"1", "3"} <= set(first_cells)
    assert err.endswith("Kept as run 1.\n")  # a long wait is told before it
    (kept,) = Store(places().store).runs()
    assert (kept.url, kept.model_name) == (url, "fake")


def test_raw_measurements_as_json_and_in_a_file(
    fake_engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, saved = fake_engine(), tmp_path / "raw.json"
    command = ["bench", url, "--json", "--streams", "2,1", "--output-tokens", "5"]
    assert main([*command, "--prompt-tokens", "33", "--save", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert printed == saved.read_text()
    two, one = from_json(list[Measurement], printed, what="the output")
    assert (two.streams, one.streams, len(two.runs), len(one.runs)) == (2, 1, 6, 3)
    assert (two.scenario, two.prompt_tokens, two.output_tokens) == ("33+5", 33, 5)
    assert {run.prompt_tokens for run in two.runs} == {33}
    assert two.conditions.url == url
    assert two.conditions.served_by is not None
    assert two.conditions.served_by.engine == "llama.cpp"
    assert (two.conditions.served_by.build, two.conditions.served_by.slots) == ("b0-fake", 4)
    assert two.conditions.samples[-1].at_s > 0
    assert all(run.sent_s is not None for run in two.runs)


def test_doubts_follow_the_table_and_keep_out_of_json(
    fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine()
    command = ["bench", url, "--repeats", "1", "--output-tokens", "5", "--lang", "zh"]
    assert main(command) == 0
    assert "只完成了 1 次重复" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "只完成了 1 次重复" in err
    assert json.loads(out)[0]["output_tokens"] == 5


def test_nobody_there(dead_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", dead_url, "--lang", "en"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"No service answers at {dead_url}: Connection refused." in err
    assert "workhorse up" in err


def test_only_failures_are_a_failure(
    fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine("--fail-after-tokens", "20")
    assert main(["bench", url, "--output-tokens", "40", "--lang", "en"]) == 1
    assert "3 of 3 requests failed; the first: told to fail" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["not-an-address"], "is not an HTTP address"),
        (["--streams", "0"], "0 is not at least 1"),
        (["--streams", "1,x"], "--streams"),
        (["--streams", "512"], "512 > 256"),
        (["--repeats", "-1"], "-1 is not at least 1"),
        (["--prompt-tokens", "many"], "--prompt-tokens"),
        (["--output-tokens", "0"], "0 is not at least 1"),
        (["http://127.0.0.1:1", "http://127.0.0.1:2"], "There is no http"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", *words, "--lang", "en"])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_place_that_cannot_be_saved_to_is_told_before_measuring(
    dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path / "none" / "raw.json", tmp_path):
        assert main(["bench", dead_url, "--save", str(place), "--lang", "en"]) == 1
        assert f"{place} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "two\nlines", "schlüssel", "\x00"])
def test_a_bad_key_file(
    content: str | None, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["bench", dead_url, "--api-key-file", str(path), "--lang", "en"]) == 1
    assert "key" in capsys.readouterr().err


async def test_the_key_comes_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text("from-file\n")
    for given, words in (("from-file", ["--api-key-file", str(path)]), ("from-env", [])):
        service = PlainService(key=given)
        monkeypatch.setenv("WORKHORSE_API_KEY", "from-env")
        async with serving(service) as url:
            command = ["bench", url, "--output-tokens", "2", *words]
            assert await asyncio.to_thread(main, command) == 0


async def test_ctrl_c_keeps_the_finished_runs() -> None:
    """The third measured request hangs, and there the user has enough."""
    process: asyncio.subprocess.Process | None = None

    def interrupt_the_third(number: int) -> None:
        if number == 5:  # a first look and the warm-up came before
            service.hold = asyncio.Event()
            assert process is not None
            process.send_signal(signal.SIGINT)

    service = PlainService(on_stream=interrupt_the_third)
    async with serving(service) as url:
        words = ["bench", url, "--output-tokens", "3", "--repeats", "9", "--json", "--lang", "en"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "workhorse",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(300):
            out, err = await process.communicate()
    assert process.returncode == 1
    (kept,) = from_json(list[Measurement], out, what="the output")
    assert [(run.output_tokens, run.error) for run in kept.runs] == [(3, None)] * 2
    assert "Stopped." in err.decode()
    assert "Traceback" not in err.decode()


async def test_every_suite_has_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service, saved = PlainService(cached_tokens=12), tmp_path / "all.json"
    async with serving(service) as url:
        words = [
            "--prompt-tokens",
            "24",
            "--output-tokens",
            "4",
            "--streams",
            "1,2",
            "--repeats",
            "2",
        ]
        command = ["bench", url, "--what", "ladder,prompts,depths,prefix", *words, "--lang", "en"]
        assert await asyncio.to_thread(main, [*command, "--save", str(saved)]) == 0
    out, err = capsys.readouterr()
    for said in (
        "against serial",
        "prompt tokens",
        "context tokens",
        "shared tokens",
        "from cache",
    ):
        assert said in out
    assert "Kept as run 1." in err
    done = from_json(list[Measurement], saved.read_text(), what="it")
    names = ["ladder"] * 2 + ["prompts"] * 2 + ["depths"] + ["prefix"] * 4
    assert [one.scenario for one in done] == names
    assert [one.cache_asked for one in done] == [False] * 4 + [True] + [False, True] * 2
    assert all(one.seed is not None for one in done)
    asked = [body["cache_prompt"] for body in service.streamed]
    assert asked.count(True) == 3 + 3 + 5  # each with a warm-up


async def test_chats_keep_their_requests_when_they_are_stopped() -> None:
    """The second measured request hangs, and there the user has enough."""
    process: asyncio.subprocess.Process | None = None

    def interrupt(number: int) -> None:
        if number == 4:  # a first look and the warm-up came before
            service.hold = asyncio.Event()
            assert process is not None
            process.send_signal(signal.SIGINT)

    service = PlainService(on_stream=interrupt)
    async with serving(service) as url:
        words = ["bench", url, "--what", "chat", "--streams", "1", "--json", "--lang", "en"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workhorse", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(300):
            out, err = await process.communicate()
    assert process.returncode == 1, err
    (kept,) = from_json(list[Measurement], out, what="the output")
    (run,) = kept.runs
    assert (run.error, run.output_tokens) == (None, run.asked_output_tokens)
    assert "Kept as run" in err.decode()


async def test_https_with_a_certificate_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with serving(PlainService(), context) as url:
        command = ["bench", url, "--output-tokens", "2", "--lang", "en"]
        assert await asyncio.to_thread(main, command) == 1
        assert "not trusted" in capsys.readouterr().err
        trusting = [*command, "--ca-file", str(tmp_path / "ca.pem")]
        assert await asyncio.to_thread(main, trusting) == 0
