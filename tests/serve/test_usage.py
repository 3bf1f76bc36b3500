"""What was used is kept by the hour, and reported as one asks."""

import asyncio
import csv
import io
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from stand_ins import Exchange, StandInBackend, chunk, gateway, scripted, until

from workhorse.cli import main
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.serve.usage import Usage, Used, read_usage

DAY_S = 86400
NOON_UNIX_S = datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp()


class Clock:
    now_s = NOON_UNIX_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))
    return Places(tmp_path).service


async def kept(path: Path) -> None:
    """Two keys, two models, two days."""
    clock = Clock()
    usage = Usage(path, clock)
    usage.note(Used("ann", "m", "done", 100, 40, 20, 1.5, 4.0))
    usage.note(Used("ann", "m", "left", 0, 0, 5, 0.0, 1.0))
    usage.note(Used("ann", "e", "failed"))
    await usage.write()
    clock.now_s += DAY_S
    usage.note(Used("ann", "m", "done", 10, 0, 2, 0.0, 1.0))
    usage.note(Used("", "m", "refused"))
    await usage.write()


async def test_sums_by_key_model_and_day(path: Path) -> None:
    await kept(path)
    nobody, ann = read_usage(path)
    assert (nobody.key, nobody.totals.requests, nobody.totals.refused) == ("", 1, 1)
    assert (ann.key, ann.totals.requests, ann.totals.failed) == ("ann", 4, 1)
    assert (ann.totals.left_early, ann.totals.prompt_tokens, ann.totals.cached_tokens) == (
        1,
        110,
        40,
    )
    assert (ann.totals.generated_tokens, ann.totals.waited_s, ann.totals.served_s) == (27, 1.5, 6.0)
    assert [row.model for row in read_usage(path, by=("model",), key="ann")] == ["e", "m"]
    days = read_usage(path, by=("day", "key"), since_unix_s=NOON_UNIX_S + DAY_S)
    assert [(row.key, row.totals.requests) for row in days] == [("", 1), ("ann", 1)]


async def test_it_is_written_while_the_service_runs_and_at_its_end(path: Path) -> None:
    usage = Usage(path, Clock())
    running = usage.running()
    await anext(running)
    usage.note(Used("a", "m", "done"))
    await until(lambda: bool(read_usage(path)))
    usage.note(Used("b", "m", "done"))
    with pytest.raises(StopAsyncIteration):
        await anext(running)
    assert [row.key for row in read_usage(path)] == ["a", "b"]


async def test_a_disk_that_is_full_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = Usage(path, Clock())

    def full(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as while_full:
        while_full.setattr(sqlite3, "connect", full)
        for _ in range(3):
            usage.note(Used("a", "m", "done", 5))
            await usage.write()
    assert caplog.text.count("disk is full") == 1
    await usage.write()
    (row,) = read_usage(path)
    assert (row.totals.requests, row.totals.prompt_tokens) == (3, 15)


async def test_who_leaves_in_the_middle_has_had_the_prompt_read(path: Path) -> None:
    async def begins(to: Exchange) -> None:
        await to.begin_stream()
        await to.event(chunk("a"))
        await to.client_leaves()

    async with (
        scripted(begins) as (engine, url),
        gateway(StandInBackend(url), usage=Usage(path)) as front,
        aiohttp.ClientSession(front) as http,
    ):
        asked = {"prompt": "x" * 400, "stream": True}
        async with http.post("/v1/completions", json=asked) as answer:
            await answer.content.readuntil(b"\n\n")
        await (await engine.first()).left.wait()
    (row,) = read_usage(path)
    assert (row.totals.left_early, row.totals.generated_tokens) == (1, 1)
    assert row.totals.prompt_tokens == pytest.approx(100, abs=2)  # by its bytes


def test_a_file_that_is_no_database_is_told(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(AppError, match=r"service-1\.sqlite"):
        read_usage(path)


async def test_nothing_that_was_asked_is_in_the_file(path: Path) -> None:
    await kept(path)
    columns = {row[1] for row in sqlite3.connect(path).execute("PRAGMA table_info(usage_hour)")}
    assert not columns & {"prompt", "messages", "body", "answer", "text"}


def test_before_anything_was_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage"]) == 0
    assert capsys.readouterr().out == "Nothing was asked in that time.\n"
    assert main(["usage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_the_verb_prints_a_table_json_and_csv(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(kept(path))
    assert main(["usage", "--lang", "zh"]) == 0
    table = capsys.readouterr().out
    assert "（无）" in table
    assert "ann" in table
    assert main(["usage", "--json", "--by", "model", "key", "--key", "ann"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["model"], first["key"], second["generated_tokens"]) == ("e", "ann", 27)
    assert main(["usage", "--csv", "--by", "day", "--since", "2026-10-01"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["requests"] for row in rows] == ["3", "2"]
    assert rows[0]["day"] < rows[1]["day"]
    assert main(["usage", "--since", "1h"]) == 0
    assert "Nothing" in capsys.readouterr().out


@pytest.mark.parametrize("since", ["yesterday", "7", "2026-13-01", "-1d", "99999d"])
def test_a_time_that_is_none(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["usage", f"--since={since}"])
    assert ended.value.code == 2
    assert "such as 2026-11-01" in capsys.readouterr().err
