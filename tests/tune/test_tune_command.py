"""`workhorse tune`, as a user runs, stops and misuses it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_bed import PATIENCE_S, fake_server, rule, speak_as_told
from gguf_builder import STR, llama

from workhorse.cli import main
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE
from workhorse.machine.probe import probe
from workhorse.models.quantize.quality_store import FILE, QualityStore
from workhorse.models.quantize.quality_store import fingerprint as mark
from workhorse.plan.quality import Quality
from workhorse.records import Machine

pytestmark = pytest.mark.timeout(1200)  # a busy machine needs seconds for each start

# Far beyond what a busy machine adds.
SURFACE = (rule(load_mode="mmap", speed_times=6.0), rule("die", flash_attn="off"))
SMALL = ("--context", "256", "--slots", "1", "--only", "load,flash attention")


@dataclass(frozen=True)
class Bed:
    """A home, a model and an engine, and this process as the command."""

    home: Path
    model: Path
    engine: Path
    capsys: pytest.CaptureFixture[str]

    def words(self, *words: str) -> list[str]:
        verb, *rest = words
        return [verb, str(self.model), "--engine", str(self.engine), *rest]

    def run(self, *words: str) -> "Done":
        code = main(self.words(*words))
        said = self.capsys.readouterr()
        return Done(code, said.out, said.err)

    @contextmanager
    def running(self, *words: str) -> "Iterator[Running]":
        said = self.home.parent / "said.txt"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "workhorse", *self.words(*words)],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Running(process, said)
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Running:
    """A tuning that runs, and what it has said."""

    process: subprocess.Popen[bytes]
    said: Path

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.said.read_text()):
            assert time.monotonic() < deadline, self.said.read_text()
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.02)


def unmeasured(real: Callable[..., Machine], *args: Any, **more: Any) -> Machine:
    """This machine without its memory's bandwidth, which takes seconds of all CPUs."""
    return real(*args, **more | {"measure_s": 0})


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bed:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WORKHORSE_LANG", "en")
    monkeypatch.setattr("workhorse.up.decide.probe", partial(unmeasured, probe))
    monkeypatch.setattr("workhorse.tune.load.MOST_OUTPUT_TOKENS", 30)
    monkeypatch.setattr("workhorse.tune.job.FINAL_PAIRS", 7)
    monkeypatch.setattr("workhorse.tune.job.PAIRS_MAX", 8)
    speak_as_told(monkeypatch)
    model = llama(layers=2).write(tmp_path / "tiny.gguf")
    engine = fake_server(tmp_path / "bin", SURFACE, "--gap-ms", "8")
    return Bed(tmp_path / "home", model, engine, capsys)


def load_mode(bed: Bed) -> str:
    """How the next `up` would load the weights."""
    done = bed.run("up", "--dry-run", "--context", "256", "--json")
    assert done.returncode == EXIT_GOOD, done.stderr
    argv = json.loads(done.stdout)["launch"]["argv"]
    return str(argv[argv.index("--load-mode") + 1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_it_leaves_no_engine_and_goes_on_the_next_time(
    bed: Bed, number: signal.Signals
) -> None:
    with bed.running("tune", *SMALL) as tuning:
        tuning.wait_for(r"(?m)^· 1\. ")
        tuning.process.send_signal(number)
        code = tuning.process.wait(timeout=PATIENCE_S)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else EXIT_FAILED)
        if number != signal.SIGKILL:
            assert "goes on" in tuning.said.read_text()
    done = bed.run("tune", *SMALL)
    assert done.returncode == EXIT_GOOD, done.stderr
    assert "going on after " in done.stderr
    assert "The next `workhorse up` uses it" in done.stdout


def test_what_it_found_is_used_shown_and_taken_back(bed: Bed, tmp_path: Path) -> None:
    assert load_mode(bed) == "none"
    done = bed.run("tune", *SMALL, "--json", "--report", str(tmp_path / "story.md"))
    assert done.returncode == EXIT_GOOD, done.stderr
    tuned = json.loads(done.stdout)
    assert tuned["kept"] is True
    outcomes = {t["change"]["value"]: t["outcome"] for t in tuned["trials"]}
    assert (outcomes["mmap"], outcomes["off"]) == ("accepted", "crashed")
    assert "No such file or directory" in (tmp_path / "story.md").read_text()  # the one that died

    assert load_mode(bed) == "mmap"
    plan = json.loads(bed.run("plan", "--json", "--context", "256").stdout)
    reasons = {reason["setting"]: reason for reason in plan["reasons"]}
    assert reasons["tuned"]["value"].startswith("+")
    assert plan["forecast"]["decode_tokens_per_s"]["basis"] == "measured"
    assert "tuned" in bed.run("plan", "--context", "256").stdout

    shown = bed.run("tune", "--show", "--context", "256")
    assert shown.returncode == EXIT_GOOD, shown.stderr
    assert "load mode, pages mmap" in shown.stdout
    assert "crashed" in shown.stdout
    replayed = json.loads(bed.run("tune", "--dry-run", "--json", "--context", "256").stdout)
    assert len(replayed["steps"]) == len(tuned["trials"])
    assert replayed["kept"] == tuned["changes"]
    undone = bed.run("tune", "--undo", "--lang", "zh")
    assert undone.returncode == EXIT_GOOD, undone.stderr
    assert "已撤销 1 个" in undone.stdout
    assert load_mode(bed) == "none"
    assert bed.run("tune", "--undo").returncode == EXIT_NO


def quality_of(file: Path, parent: Path, kl_mean: float) -> Quality:
    """What `workhorse quantize` keeps of a file that it made and compared."""
    return Quality(
        mark(file), mark(parent), file.name, parent.name, "Q4_0", 1, 2, 512, "test", "0", 9.0, 9.1,
        kl_mean, 0.1, 0.95, None, "2026-12-01T00:00:00+00:00",
    )  # fmt: skip


def test_another_quant_is_taken_within_the_loss_that_is_allowed(bed: Bed, tmp_path: Path) -> None:
    """By what was measured when the files were made: the worse one is not even started."""
    near, far = tmp_path / "near.gguf", tmp_path / "far.gguf"
    for file, padding in ((near, 1), (far, 2)):
        llama(layers=2).key("general.description", STR, "x" * padding).write(file)
    store = QualityStore(bed.home / FILE)
    store.add(quality_of(near, bed.model, 0.01))
    store.add(quality_of(far, bed.model, 0.5))
    faster = [rule(model=str(file), speed_times=6.0) for file in (near, far)]
    fake_server(bed.engine.parent, faster, "--gap-ms", "8")
    done = bed.run(
        *("tune", "--context", "256", "--slots", "1", "--only", "quant", "--json"),
        *("--files", f"{near},{far}", "--quality", "0.05"),
    )
    assert done.returncode == EXIT_GOOD, done.stderr
    tuned = json.loads(done.stdout)
    outcomes = {Path(t["change"]["value"]).name: t for t in tuned["trials"]}
    assert outcomes["near.gguf"]["outcome"] == "accepted"
    assert outcomes["far.gguf"]["outcome"] == "refused"
    assert outcomes["far.gguf"]["pairs"] == []
    assert "KL divergence 0.5000 is above 0.05" in outcomes["far.gguf"]["why"]["en"]
    assert tuned["kept"] is True

    def served() -> str:
        done = bed.run("up", "--dry-run", "--context", "256", "--json")
        assert done.returncode == EXIT_GOOD, done.stderr
        launch = json.loads(done.stdout)["launch"]["argv"]
        return str(launch[launch.index("--model") + 1])

    assert served() == str(near)
    llama(layers=4).write(near)
    assert served() == str(bed.model)
    near.unlink()
    assert served() == str(bed.model)
    plan = json.loads(bed.run("plan", "--json", "--context", "256").stdout)
    assert "tune.file_gone" in {found["code"] for found in plan["verdict"]["findings"]}


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--files", "other.gguf"), EXIT_USAGE, "nothing says how much they may"),
        (("--files", "tiny.gguf", "--quality", "0.01"), EXIT_USAGE, "is tuned already"),
        (("--files", "deeper.gguf", "--quality", "0.01"), EXIT_USAGE, "is another model: layers 3"),
        (("--files", "none.gguf", "--quality", "0.01"), EXIT_FAILED, "none.gguf"),
        (("--files", ",", "--quality", "0.01"), None, "names no file"),
    ],
)
def test_files_that_cannot_be_tried(
    bed: Bed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    code: int | None,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    llama(layers=2).key("general.description", STR, "x").write(tmp_path / "other.gguf")
    llama(layers=3).write(tmp_path / "deeper.gguf")
    if code is None:
        with pytest.raises(SystemExit):
            bed.run("tune", *more)
        assert said in capsys.readouterr().err
        return
    done = bed.run("tune", "--context", "256", *more)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert "→" in done.stderr
    assert not (bed.home / "logs").exists()


def test_a_dry_run_starts_nothing_and_says_what_would_be_tried(bed: Bed) -> None:
    done = bed.run("tune", "--context", "256", "--dry-run")
    assert done.returncode == EXIT_GOOD, done.stderr
    assert "What would be tried" in done.stdout
    assert "There is one memory node" in done.stdout or "memory nodes" in done.stdout
    assert not (bed.home / "logs").exists()


def test_one_tunes_at_a_time(bed: Bed) -> None:
    with bed.running("tune", *SMALL) as tuning:
        tuning.wait_for("tuning for decode")
        second = bed.run("tune", *SMALL)
        assert second.returncode == EXIT_NO
        assert f"process {tuning.process.pid}" in second.stderr
        assert "→" in second.stderr
        tuning.process.terminate()
        assert tuning.process.wait(timeout=PATIENCE_S) == EXIT_FAILED


def test_an_engine_that_does_not_start_is_told_once(bed: Bed) -> None:
    fake_server(bed.engine.parent, [rule("die", flash_attn="on")])
    done = bed.run("tune", *SMALL)
    assert done.returncode == EXIT_FAILED
    assert "engine: The engine ended" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "20"], "such as 20m"),
        (["--budget", "1s"], "such as 20m"),
        (["--budget", "m"], "such as 20m"),
        (["--only", "colour"], "there is no variable 'colour'"),
        (["--only", ","], "there is no variable"),
        (["--quality", "0"], "no KL divergence"),
        (["--quality", "much"], "--quality cannot be 'much'"),
        (["--show", "--undo"], "not allowed with"),
    ],
)
def test_a_slip_is_told_with_the_next_step(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", "model.gguf", *words])
    assert ended.value.code == EXIT_USAGE
    err = capsys.readouterr().err
    assert said in err
    assert "→" in err


def test_a_report_that_cannot_be_written_is_told_before_the_trials(bed: Bed) -> None:
    done = bed.run("tune", "--report", str(bed.home / "no" / "story.md"))
    assert done.returncode == EXIT_FAILED
    assert "cannot be written" in done.stderr


def test_nothing_was_tuned_yet(bed: Bed) -> None:
    done = bed.run("tune", "--show")
    assert done.returncode == EXIT_FAILED
    assert "No such model was tuned" in done.stderr
