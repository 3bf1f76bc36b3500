"""The load against services whose times and faults are known beforehand."""

import asyncio
import itertools
from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web
from plain_service import PlainService, serving

from workhorse.bench.load import Progress, measure
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import service_url
from workhorse.errors import AppError
from workhorse.records import Run

FakeEngine = Callable[..., str]
PATIENCE_S = 120.0  # far from the 800 s that the answers would take which nobody waits for


def ignore(_: Progress) -> None:
    pass


async def measured(url: str, **sizes: int) -> tuple[Run, ...]:
    return await measure(url, Scenario("test", **sizes), on_progress=ignore, seed=1)


async def test_cancelling_frees_the_slot(fake_engine: FakeEngine) -> None:
    url = fake_engine("--slots", "2", "--gap-ms", "200")
    started = asyncio.Event()

    def look(progress: Progress) -> None:
        if progress.pieces:
            started.set()

    scenario = Scenario("test", prompt_tokens=20, output_tokens=4000, streams=2)
    task = asyncio.create_task(measure(url, scenario, on_progress=look))
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
        await until_busy(url, 2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await until_busy(url, 0)


async def until_busy(url: str, slots: int) -> None:
    while await busy_slots(url) != slots:  # noqa: ASYNC110 another process's slots
        await asyncio.sleep(0.01)


async def busy_slots(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/slots") as answer:
        return sum(slot["is_processing"] for slot in await answer.json())


async def test_an_error_in_the_middle_is_a_run(fake_engine: FakeEngine) -> None:
    # The warm-up asks for 16 tokens and passes.
    url = fake_engine("--fail-after-tokens", "30")
    runs = await measured(url, prompt_tokens=20, output_tokens=50)
    assert [run.error for run in runs] == ["told to fail in the middle"] * 3
    assert [len(run.arrivals_s) for run in runs] == [30] * 3


async def test_a_service_that_dies_leaves_runs_with_errors(fake_engine: FakeEngine) -> None:
    url = fake_engine("--die-after-tokens", "90")
    runs = await measured(url, prompt_tokens=20, output_tokens=50)
    assert len(runs) == 3
    assert runs[0].error is None
    assert "Connection" in str(runs[1].error) or "payload" in str(runs[1].error)
    assert str(runs[2].error).startswith("Connection")  # refused or reset, as the kernel likes


async def test_a_request_that_never_works_is_told_in_the_engines_words(
    fake_engine: FakeEngine,
) -> None:
    url = fake_engine("--context", "256")
    with pytest.raises(AppError) as refused:
        await measured(url)
    assert "exceeds the available context size (256 tokens)" in refused.value.what.en
    assert refused.value.speaker == "engine"


async def test_a_loading_service_is_named() -> None:
    loading = web.json_response({"error": {"message": "Loading model"}}, status=503)
    async with serving(PlainService(models=loading)) as url:
        with pytest.raises(AppError, match="not ready: Loading model"):
            await measured(url)


async def test_a_service_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workhorse.bench.service.ASK_TIMEOUT_S", 0.1)
    async with serving(PlainService(hold=asyncio.Event())) as url:
        with pytest.raises(AppError, match="Connection timed out"):
            await measured(url)


async def test_a_web_page_is_not_a_service() -> None:
    async with serving(PlainService(models=web.Response(text="<html>hello</html>"))) as url:
        with pytest.raises(AppError, match="not as an OpenAI-compatible service"):
            await measured(url)


async def test_without_a_tokenizer_the_real_length_is_reported() -> None:
    service = PlainService()
    async with serving(service) as url:
        runs = await measured(url, output_tokens=5, streams=2)
    lengths = [len(body["prompt"]) // 4 for body in service.streamed]
    assert sorted(str(run.prompt_tokens) for run in runs) == sorted(map(str, lengths[1:]))
    assert all(abs(length - 768) < 768 * 0.02 for length in lengths)
    beginnings = {body["prompt"][:12] for body in service.streamed}
    assert len(beginnings) == len(service.streamed) == 7


async def test_each_request_is_the_protocols() -> None:
    service = PlainService()
    async with serving(service) as url:
        await measured(url, output_tokens=40)
    assert [body["max_tokens"] for body in service.streamed] == [16, 40, 40, 40]
    for body in service.streamed:
        assert body["model"] == "plain"
        assert (body["cache_prompt"], body["ignore_eos"], body["temperature"]) == (False, True, 0)
        assert body["stream_options"] == {"include_usage": True}


async def test_a_service_that_counts_nothing_still_gives_times() -> None:
    async with serving(PlainService(counts_tokens=False)) as url:
        runs = await measured(url, output_tokens=5)
    assert {(run.prompt_tokens, run.output_tokens, run.error) for run in runs} == {(None, 5, None)}


async def test_the_key_goes_with_every_request() -> None:
    service = PlainService(key="secret")
    async with serving(service) as url:
        scenario = Scenario("test", output_tokens=2)
        runs = await measure(url, scenario, on_progress=ignore, api_key="secret")
        assert {run.error for run in runs} == {None}
        with pytest.raises(AppError, match="refuses the API key"):
            await measure(url, scenario, on_progress=ignore, api_key="wrong")
        with pytest.raises(AppError, match="refuses the API key"):
            await measure(url, scenario, on_progress=ignore)


async def test_progress_gives_complete_rounds_and_never_goes_back() -> None:
    seen: list[Progress] = []
    async with serving(PlainService()) as url:
        scenario = Scenario("test", output_tokens=4, streams=2)
        runs = await measure(url, scenario, on_progress=seen.append)
    assert [len(progress.runs) for progress in seen] == [2, 4, 6]
    assert seen[-1].runs == runs
    assert [a.pieces <= b.pieces for a, b in itertools.pairwise(seen)] == [True, True]


async def test_the_clock_is_the_callers() -> None:
    ticks = itertools.count(100.0, 0.5)
    async with serving(PlainService()) as url:
        scenario = Scenario("test", output_tokens=4, repeats=1)
        (run,) = await measure(url, scenario, on_progress=ignore, clock=lambda: next(ticks))
    assert run.end_s > 0
    assert all(time_s % 0.5 == 0 for time_s in (*run.arrivals_s, run.end_s))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("https://llm.example/api/v1/", "https://llm.example/api"),
        ("http://[::1]:8080/v1", "http://[::1]:8080"),
    ],
)
def test_an_address_is_meant_with_or_without_v1(given: str, meant: str) -> None:
    assert service_url(given) == meant


@pytest.mark.parametrize(
    "given", ["", "8080", "127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://[::1"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(AppError) as refused:
        service_url(given)
    assert refused.value.exit_code == 2
