"""`bench --compare`: figures beside each other, and what the exit code says."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from running_fake import FakeEngine
from workhorse.bench.against import compare_all, compare_measurements, matched, series
from workhorse.bench.compare import SAMPLES_MIN, compare_apart
from workhorse.bench.job import Where, find
from workhorse.bench.load import load_session
from workhorse.bench.scenario import Scenario
from workhorse.bench.turns import take_turns
from workhorse.cli import main
from workhorse.codec import from_json, to_json
from workhorse.config import places
from workhorse.records import Conditions, Measurement, Run
from workhorse.store import Store

CONDITIONS = Conditions("2026-11-30T00:00:00+00:00", None, None, "http://127.0.0.1:1", "0")


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))


def measured(
    speed: float, *, seed: int, rounds: int = 8, streams: int = 1, noise: float = 0.01
) -> Measurement:
    draw = random.Random(seed)
    runs = []
    for _ in range(rounds):
        rate = speed * draw.uniform(1 - noise, 1 + noise)
        for stream in range(streams):
            arrivals_s = tuple(0.5 + i / rate for i in range(50))
            runs.append(Run(stream, 768, 0, 50, arrivals_s, arrivals_s[-1]))
    return Scenario("x", output_tokens=50, streams=streams).measurement(runs, CONDITIONS)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("b", "outcome", "lost"),
    [(40.0, "no difference", False), (44.0, "faster", False), (34.0, "slower", True)],
)
def test_what_is_said_of_two_runs(apart: bool, b: float, outcome: str, lost: bool) -> None:
    decode, prefill = compare_measurements(measured(40, seed=1), measured(b, seed=2), apart=apart)
    assert (decode.figure, decode.outcome) == ("decode", outcome)
    assert decode.ratio == pytest.approx(b / 40, rel=0.02)
    assert decode.lost_more_than(0.03) is lost
    assert not decode.lost_more_than(0.2)
    assert (prefill.figure, prefill.outcome) == ("prefill", "no difference")


def test_several_streams_are_compared_in_all_too() -> None:
    a, b = measured(40, seed=1, streams=4), measured(36, seed=2, streams=4)
    figures = {one.figure: one.outcome for one in compare_measurements(a, b, apart=False)}
    assert figures == {"decode": "slower", "total": "slower", "prefill": "no difference"}
    assert len(series(a, "total")) == 8


def test_too_few_rounds_say_nothing_and_lose_nothing() -> None:
    a, b = measured(40, seed=1, rounds=3), measured(20, seed=2, rounds=3)
    for apart in (True, False):
        decode, _ = compare_measurements(a, b, apart=apart)
        assert (decode.outcome, decode.interval) == ("too few", None)
        assert not decode.lost_more_than(0)


def test_equal_speeds_are_hardly_ever_called_different() -> None:
    wrong = 0
    for seed in range(60):
        draw = random.Random(seed)
        a, b = ([40 * draw.gauss(1, 0.03) for _ in range(SAMPLES_MIN)] for _ in "ab")
        interval = compare_apart(a, b, seed=seed).interval
        assert interval is not None
        wrong += not interval[0] <= 1 <= interval[1]
    assert wrong <= 6


def paced(*speeds: float) -> Measurement:
    runs = []
    for speed in speeds:
        arrivals_s = tuple(0.5 + i / speed for i in range(50))
        runs.append(Run(0, None, 0, 50, arrivals_s, arrivals_s[-1]))
    return Scenario("x", output_tokens=50).measurement(runs, CONDITIONS)


def test_many_figures_share_one_chance_of_error() -> None:
    even = paced(*[40.0] * 8)
    # Six of eight slower: by chance in one of seven equal pairs of services.
    doubtful = paced(39.0, 38.8, 39.1, 38.9, 39.2, 38.7, 40.3, 40.4)
    (alone,) = compare_all([(even, doubtful)], apart=False)
    assert alone.lost_more_than(0)
    together = compare_all([(even, doubtful)] * 20, apart=False)
    assert [one.outcome for one in together] == ["no difference"] * 20
    surely = compare_all([(even, paced(*[36.0 + n / 10 for n in range(8)]))] * 20, apart=False)
    assert all(one.lost_more_than(0.03) for one in surely)


def test_scenarios_find_their_like() -> None:
    a = [measured(40, seed=1), measured(40, seed=1, streams=4)]
    b = [replace(a[1]), measured(9, seed=1, streams=2), replace(a[0])]
    assert [(x.streams, y.streams) for x, y in matched(a, b)] == [(1, 1), (4, 4)]


def save(path: Path, *measurements: Measurement) -> str:
    path.write_text(to_json(measurements))
    return str(path)


def test_stored_runs_a_file_and_one_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = Store(places().store).keep_bench([measured(40, seed=1)])
    slower = save(tmp_path / "b.json", measured(36, seed=2))
    command = ["bench", "--compare", str(number), slower, "--lang", "en"]
    assert main(command) == 3
    out = capsys.readouterr().out
    assert "B is slower" in out
    assert "not measured in turns" in out
    assert "0 % is allowed" in out
    assert main([*command, "--max-loss", "20%"]) == 0
    assert main(["bench", "--compare", slower, str(number), "--lang", "zh"]) == 0
    assert "B 更快" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--max-loss", "3%"], "--max-loss needs --compare", 2),
        (["--compare", "1"], "--compare", 2),
        (["--compare", "1", "2", "--max-loss", "lots"], "--max-loss", 2),
        (["--compare", "http://127.0.0.1:1", "7"], "not one of each", 2),
        (["http://127.0.0.1:1", "--compare", "1", "2"], "one too many", 2),
        (["--compare", "41", "42"], "no run '41'", 2),
        (["--compare", "broken.json", "broken.json"], "is not a", 1),
        (["--compare", "a.json", "c.json"], "no scenario in common", 2),
        (["--compare", "a.json", "empty.json"], "no scenario in common", 2),
        (["--what", "standard,speed"], "'speed' is none of", 2),
        (["--ca-file", "a.json"], "cannot be read as certificates", 1),
    ],
)
def test_what_a_user_can_do_wrong(
    words: list[str],
    said: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.json", measured(40, seed=1))
    save(tmp_path / "c.json", measured(40, seed=1, streams=2))
    save(tmp_path / "empty.json")
    (tmp_path / "broken.json").write_text('[{"scenario": 1}]')
    try:
        seen = main(["bench", *words, "--lang", "en"])
    except SystemExit as ended:
        seen = int(str(ended.code))
    assert seen == code
    assert said in capsys.readouterr().err


def test_two_services_are_measured_in_turns(
    fake_engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = fake_engine("--gap-ms", "2"), fake_engine("--gap-ms", "60")
    saved = tmp_path / "both.json"
    command = ["bench", "--compare", fast, slow, "--output-tokens", "8", "--prompt-tokens", "16"]
    code = main([*command, "--max-loss", "3%", "--save", str(saved), "--lang", "en"])
    out = capsys.readouterr().out
    both = from_json(list[Measurement], saved.read_text(), what="it")
    # Other work may have held up the one or the other: what is said follows from what was seen.
    a, b = both
    assert (a.conditions.url, b.conditions.url) == (fast, slow)
    compared = compare_all([(a, b)], apart=False)
    assert code == (3 if any(one.lost_more_than(0.03) for one in compared) else 0)
    assert ("B is slower" in out) == any(one.outcome == "slower" for one in compared)
    # Seven gaps; a service that is told to be slow cannot be quick.
    assert all(run.end_s >= 7 * 0.06 for run in b.runs)
    urls = sorted((run.sent_s or 0, one.conditions.url) for one in both for run in one.runs)
    assert [url for _, url in urls][:4] == [fast, slow, slow, fast]
    assert len(urls) == 16


async def test_stopped_midway_the_pairs_that_are_whole_are_kept(fake_engine: FakeEngine) -> None:
    url = fake_engine("--gap-ms", "1")
    done: list[tuple[Measurement, Measurement]] = []
    rounds: list[int] = []

    def told(so_far: int) -> None:
        rounds.append(so_far)
        if len(rounds) == 5:  # in the third pair
            asyncio.current_task().cancel()  # type: ignore[union-attr]

    scenario = Scenario("x", prompt_tokens=8, output_tokens=4, repeats=9)
    async with load_session() as client:
        found = await find(client, Where(url))
        with pytest.raises(asyncio.CancelledError):
            await take_turns(client, found, found, scenario, done, told)
    ((a, b),) = done
    assert (len(a.runs), len(b.runs)) == (2, 2)
    assert a.conditions.samples
