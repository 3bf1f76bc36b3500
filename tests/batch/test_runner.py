"""A job is run to one end for each item, on a fake engine behind the real gateway."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_client import fake
from job_rig import (
    NOW_S,
    SLOTS,
    Heard,
    LongPatience,
    added,
    asking,
    new_ledger,
    one_question,
    pace,
    run,
    said_to,
    standing,
    texts,
    until,
)

from workhorse.batch import crew
from workhorse.batch.item import Item, NewItem, Reason, Result
from workhorse.batch.job import Counts
from workhorse.batch.ledger import Ledger
from workhorse.batch.task import Answer, ItemFailed, NotValid, Tools
from workhorse.engines.fake.tokens import to_tokens
from workhorse.errors import EXIT_NO, AppError


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(tmp_path) as opened:
        yield opened


async def test_every_item_gets_its_own_answer(ledger: Ledger) -> None:
    job_id = added(ledger, texts(40))
    heard = Heard()
    async with standing() as there:
        record = await run(ledger, job_id, one_question, there.url, tell=heard)
    assert (record.state, record.counts) == ("done", Counts(done=40))
    for item in ledger.items(job_id, content=True):
        assert item.result == Result(text=said_to(item.content))
        assert item.usage.requests == 1 and item.usage.prompt_tokens > 0
        assert item.usage.output_tokens == 8
    assert heard.progress[-1].counts == Counts(done=40)
    assert heard.progress[-1].usage == ledger.usage(job_id)
    assert not heard.notes


async def test_a_chain_of_requests_leaves_no_slot_empty(ledger: Ledger) -> None:
    """Each item asks one request after another; as many are begun as there are streams."""
    busiest = 0

    async def chain(item: Item, tools: Tools) -> Result:
        for step in range(4):
            await tools.ask(asking(item.content, f"step {step}"))
        return Result(text="end")

    async def watch(slots: Sequence[bool]) -> None:
        # When an answer has come its own slot is empty: whoever looks then sees one too few.
        nonlocal busiest
        while True:
            busiest = max(busiest, sum(slots))
            await asyncio.sleep(0.001)

    job_id = added(ledger, texts(30))
    async with standing(gap_s=0.002) as there:
        watching = asyncio.create_task(watch(there.engine.server.decoder.slots.busy))
        record = await run(ledger, job_id, chain, there.url, pace=pace(SLOTS + 1))
        watching.cancel()
    assert record.counts == Counts(done=30)
    assert busiest == SLOTS


async def test_few_items_are_in_hand_at_a_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many and large they are."""
    monkeypatch.setattr(crew, "TEXT_MOST_BYTES", 3 * 2000)
    in_hand = most = 0

    async def hold(item: Item, tools: Tools) -> Result:
        nonlocal in_hand, most
        in_hand += 1
        most = max(most, in_hand)
        await tools.ask(asking("short"))
        in_hand -= 1
        return Result(text="end")

    job_id = added(ledger, texts(20, "x" * 2000))
    async with standing() as there:
        assert (await run(ledger, job_id, hold, there.url)).counts == Counts(done=20)
    assert most <= 3


async def test_errors_and_garbage_are_asked_again_and_each_item_is_accounted_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.batch.retry.BACK_OFF_S", 0.01)
    job_id = added(ledger, texts(60))

    async def long_answer(item: Item, tools: Tools) -> Result:
        answer = await tools.ask(asking(item.content, tokens=40, ignore_eos=True))
        return Result(text=answer.text)

    async with standing(error_rate=0.25, garbage_rate=0.15, seed=7) as there:
        record = await run(ledger, job_id, long_answer, there.url)
    done, failed = record.counts.done, record.counts.failed
    assert done + failed == 60 and done > 40 and failed > 0
    for item in ledger.items(job_id):
        if item.state == "done":
            assert item.result and "GGGG" not in (item.result.text or "")
        else:
            assert item.reason and item.attempts == 3
            told = {"no answer": "told to fail", "not valid": "GGGG"}[item.reason.cause]
            assert told in item.reason.seen
    assert ledger.retry(job_id) == failed
    async with standing() as there:
        assert (await run(ledger, job_id, long_answer, there.url)).counts == Counts(done=60)


async def test_a_request_that_is_not_answered_in_its_time(ledger: Ledger) -> None:
    """Its own tries are used up; the service answers the others meanwhile, so it is not away."""
    endless = NewItem(id="endless", source="endless", content="x" * 4000)

    async def as_long_as_told(item: Item, tools: Tools) -> Result:
        long = {"tokens": 2000, "ignore_eos": True} if item.id == "endless" else {"tokens": 1}
        return Result(text=(await tools.ask(asking(item.content, **long))).text)

    job_id = added(ledger, [endless, *texts(5)], attempts=2)
    async with standing(gap_s=60.0) as there:
        patience = LongPatience(short_above=3000)
        record = await run(ledger, job_id, as_long_as_told, there.url, patience=patience)
    assert record.counts == Counts(done=5, failed=1)
    first = next(ledger.items(job_id))
    assert first.reason and (first.reason.cause, first.attempts) == ("no answer", 2)


async def test_a_check_refuses_until_the_answer_is_right(ledger: Ledger) -> None:
    asked: list[dict[str, Any]] = []

    def third_time(answer: Answer) -> str:
        asked.append(dict(answer.body))
        if len(asked) < 3:
            raise NotValid("too short", "太短")
        return answer.text.upper()

    def never(answer: Answer) -> str:
        raise NotValid(f"{answer.text[:4]!r} is no number", "不是数字")

    async def checked(item: Item, tools: Tools) -> Result:
        check = third_time if item.number == 0 else never
        return Result(text=await tools.ask(asking(item.content), check))

    job_id = added(ledger, texts(2))
    async with standing() as there:
        record = await run(ledger, job_id, checked, there.url, pace=pace(1))
    right, wrong = ledger.items(job_id)
    assert record.counts == Counts(done=1, failed=1)
    assert right.result and right.result.text and right.result.text.isupper()
    # The engine is greedy: it was asked in another way each time, or it had said the same.
    assert len({one["choices"][0]["message"]["content"] for one in asked}) == 3
    assert right.usage.requests == 3
    assert wrong.reason and wrong.reason.cause == "not valid"
    assert "is no number" in wrong.reason.seen


async def test_what_was_answered_is_not_asked_again(ledger: Ledger) -> None:
    """Not after the job was stopped, not by the same step twice at once."""
    asked: list[str] = []
    stop_at_second = True
    first_done = asyncio.Event()

    async def two_steps(item: Item, tools: Tools) -> Result:
        def note(answer: Answer) -> str:
            asked.append(f"{item.number} {answer.text}")
            return answer.text

        one, same = await asyncio.gather(
            tools.ask(asking(item.content, "one"), note), tools.ask(asking("other", "one"), note)
        )
        assert one == same
        if stop_at_second:
            first_done.set()
            await asyncio.Event().wait()
        two = await tools.ask(asking(one, "two"))
        return Result(text=two.text)

    job_id = added(ledger, texts(1))
    async with standing() as there:
        running = asyncio.create_task(run(ledger, job_id, two_steps, there.url))
        await first_done.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        stopped = ledger.job(job_id)
        assert (stopped.state, stopped.counts) == ("stopped", Counts(waiting=1))
        stop_at_second = False
        assert (await run(ledger, job_id, two_steps, there.url)).state == "done"
    assert ledger.usage(job_id).requests == 2
    assert len(set(asked)) == 1
    (item,) = ledger.items(job_id)
    assert item.result == Result(text=said_to(said_to("text 0")))


async def test_tasks_that_go_wrong(ledger: Ledger) -> None:
    """Whatever a template's code does is its item's affair, and nothing of it goes on asking."""
    reason = Reason(cause="too long", seen="It is a whole library.", seen_zh="太长。")

    async def wrong(item: Item, tools: Tools) -> Result:
        if item.number == 0:
            raise ItemFailed(reason)
        if item.number == 1:
            return Result(text={}["missing"])
        if item.number == 2:
            async with asyncio.TaskGroup() as group:
                group.create_task(tools.ask(asking("a", "a")))
                group.create_task(fails())
        if item.number == 3:
            left.append(asyncio.create_task(tools.ask(asking("b", "b", 4000, ignore_eos=True))))
            await until(lambda: any(there.engine.server.decoder.slots.busy))
        return Result(text="fine")

    async def fails() -> None:
        raise NotValid("as a whole", "整体无效")

    left: list[asyncio.Task[Any]] = []
    job_id = added(ledger, texts(5))
    async with standing(gap_s=30.0) as there:
        record = await run(ledger, job_id, wrong, there.url, pace=pace(1))
        await until(lambda: left[0].done() and not any(there.engine.server.decoder.slots.busy))
    assert record.counts == Counts(done=2, failed=3)
    library, bug, group, *_ = ledger.items(job_id)
    assert library.reason == reason
    assert bug.reason and bug.reason.cause == "template" and "missing" in bug.reason.seen
    assert group.reason and group.reason.cause == "not valid"
    assert left[0].cancelled()


async def test_another_process_cancels_it(ledger: Ledger, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def endless(item: Item, tools: Tools) -> Result:
        if item.number == 0:
            return Result(text="in time")
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    job_id = added(ledger, texts(3))
    async with standing() as there:
        running = asyncio.create_task(run(ledger, job_id, endless, there.url))
        await begun.wait()
        with new_ledger(tmp_path) as another:
            with pytest.raises(AppError) as refused:
                await run(another, job_id, endless, there.url)
            assert refused.value.exit_code == EXIT_NO
            another.cancel(job_id, NOW_S)
        record = await running
    assert (record.state, record.counts) == ("cancelled", Counts(done=1, cancelled=2))
    # What has ended is not begun again.
    assert await run(ledger, job_id, endless, there.url) == record


async def test_requests_are_passed_on_as_they_are(ledger: Ledger) -> None:
    """And so is what the engine says of them, its refusals too."""
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": True}
    lines: list[dict[str, Any]] = [
        {"method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"method": "POST", "url": "/v1/completions", "body": {"prompt": 7 * ["x" * 90_000]}},
        {"method": "POST", "url": "/v1/chat/completions", "body": {"messages": "nonsense"}},
        {"method": "POST", "url": "/workhorse/reload", "body": {}},
        {"method": "POST", "url": "/v1/embeddings", "body": {"input": "hello"}},
    ]
    items = [
        NewItem(id=f"r{n}", source=f"line {n}", kind="request", content=json.dumps(line))
        for n, line in enumerate([*lines, {"url": 7}])
    ]
    job_id = added(ledger, items, template="request")
    async with standing() as there:
        record = await run(ledger, job_id, None, there.url)
    assert record.counts == Counts(done=4, failed=2)
    good, long, bad, forbidden, embeds, broken = ledger.items(job_id)
    assert good.result and good.result.value["status_code"] == 200
    said = good.result.value["body"]["choices"][0]["message"]["content"]
    assert said == said_to("hello") and good.usage.output_tokens == 8
    for refused, status in ((long, 400), (bad, 400), (embeds, 501)):
        assert refused.result and refused.result.value["status_code"] == status
        assert refused.result.value["body"]["error"]["message"]
    for failed in (forbidden, broken):
        assert failed.reason and failed.reason.cause == "refused"


async def test_a_text_that_the_context_does_not_hold(ledger: Ledger) -> None:
    job_id = added(ledger, [NewItem(id="a", source="a", content="word " * 9000)])
    async with standing(context_tokens=512) as there:
        await run(ledger, job_id, one_question, there.url)
    (item,) = ledger.items(job_id)
    assert item.reason and item.reason.cause == "too long" and item.attempts == 0
    assert "512" in item.reason.seen


async def test_tokens_are_counted_by_the_models_own_tokenizer(ledger: Ledger) -> None:
    texts_ = ["", "three words here", "龙" * 1000, "x" * 450_001]
    counted: list[int] = []
    contexts: set[int] = set()

    async def count(item: Item, tools: Tools) -> Result:
        contexts.add(tools.context_tokens)
        for text in texts_:
            counted.append(await tools.count_tokens(text))
            assert await tools.count_tokens(text) == counted[-1]
        assert await tools.embed(["a"]) is None
        return Result(text="end")

    job_id = added(ledger, texts(1))
    async with standing(context_tokens=777) as there:
        await run(ledger, job_id, count, there.url)
    wholes = [len(to_tokens(text)) for text in texts_]
    assert counted[:3] == wholes[:3]
    assert wholes[3] <= counted[3] <= wholes[3] + 3  # it is counted in parts
    assert contexts == {777}


async def test_vectors_of_a_model_that_makes_them(ledger: Ledger) -> None:
    found: list[Any] = []

    async def embed(item: Item, tools: Tools) -> Result:
        found.append(await tools.embed([f"text {n}" for n in range(70)]))
        return Result(text="end")

    job_id = added(ledger, texts(1))
    async with standing(embeddings=True) as there:
        await run(ledger, job_id, embed, there.url)
    assert len(found[0]) == 70 and len({tuple(one) for one in found[0]}) == 70
    assert ledger.usage(job_id).requests == 3


async def test_an_engine_without_a_gateway(ledger: Ledger) -> None:
    job_id = added(ledger, texts(8))
    contexts: set[int] = set()

    async def question(item: Item, tools: Tools) -> Result:
        contexts.add(tools.context_tokens)
        return await one_question(item, tools)

    async with fake(slots=2, context_tokens=555) as engine:
        assert (await run(ledger, job_id, question, engine.url)).counts == Counts(done=8)
    assert contexts == {555}
