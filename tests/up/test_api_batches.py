"""OpenAI's batches by its official client: from the file to the results, and every other end."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import trustme
from api_scenes import (
    CHAT,
    EMBED,
    TEXT,
    batch_service,
    chats,
    client_of,
    ended,
    jsonl,
    ordered,
    request,
    results,
    until,
    watched,
)
from service_inside import Listener, serving

from workhorse.batch import api_work
from workhorse.batch.api_record import Batch
from workhorse.batch.ledger import Ledger
from workhorse.config import Places
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key
from workhorse.serve.usage import read_usage

LONG = [{"role": "user", "content": "word " * 20_000}]

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more


def begun(batch: openai.types.Batch) -> bool:
    return bool(batch.request_counts and batch.request_counts.completed)


async def test_from_a_file_to_its_results(tmp_path: Path, small_model: Path) -> None:
    """With a request that the engine refuses among the good ones."""
    content = jsonl(*(request(f"r{n}") for n in range(6)), request("long", messages=LONG))
    async with batch_service(tmp_path, small_model) as (_, client):
        batch = await ordered(client, content, metadata={"who": "ann"})
        assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
        assert batch.metadata == {"who": "ann"}
        assert batch.expires_at == batch.created_at + 24 * 3600
        done = await ended(client, batch.id)
        assert done.status == "completed" and done.errors is None
        counts = done.request_counts
        assert counts and (counts.total, counts.completed, counts.failed) == (7, 6, 1)
        assert done.in_progress_at and done.finalizing_at and done.completed_at
        assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
        assert done.cancelled_at is done.expired_at is done.failed_at is None
        assert done.model == "small"
        assert done.usage and done.usage.output_tokens == 24 and done.usage.input_tokens > 24
        good = await results(client, done.output_file_id)
        assert [one["custom_id"] for one in good] == [f"r{n}" for n in range(6)]
        assert len({one["id"] for one in good}) == 6
        for one in good:
            assert one["error"] is None and one["response"]["status_code"] == 200
            assert one["response"]["request_id"]
            answer = one["response"]["body"]
            assert answer["object"] == "chat.completion"
            assert answer["choices"][0]["message"]["content"]
        (bad,) = await results(client, done.error_file_id)
        assert bad["custom_id"] == "long" and bad["response"]["status_code"] == 400
        assert "context" in bad["response"]["body"]["error"]["message"]
        output = await client.files.retrieve(done.output_file_id or "")
        assert (output.purpose, output.filename) == ("batch_output", f"{done.id}_output.jsonl")
        with pytest.raises(openai.BadRequestError, match="purpose 'batch'") as refused:
            await client.batches.create(
                input_file_id=output.id, endpoint=CHAT, completion_window="24h"
            )
        assert refused.value.param == "input_file_id"
    assert Ledger(Places(tmp_path).batch).jobs() == (), "what was asked is kept in the files alone"


@pytest.mark.parametrize(
    ("endpoint", "body", "options"),
    [
        (TEXT, {"prompt": "go on"}, ()),
        (EMBED, {"input": ["a", "b"], "max_tokens": None}, ("--embeddings",)),
    ],
)
async def test_other_endpoints(
    tmp_path: Path, small_model: Path, endpoint: Any, body: Any, options: tuple[str, ...]
) -> None:
    content = jsonl(*(request(f"r{n}", endpoint, **body) for n in range(3)))
    async with batch_service(tmp_path, small_model, *options) as (_, client):
        done = await ended(client, (await ordered(client, content, endpoint)).id)
        found = await results(client, done.output_file_id)
        assert len(found) == 3, await results(client, done.error_file_id)
        answer = found[0]["response"]["body"]
        assert answer["object"] in ("text_completion", "list")


async def test_errors_name_their_lines(tmp_path: Path, small_model: Path) -> None:
    content = jsonl(request("a"), request("a")) + b"no json\n" + jsonl(request("b", EMBED))
    async with batch_service(tmp_path, small_model) as (_, client):
        failed = await ended(client, (await ordered(client, content)).id)
        assert failed.status == "failed" and failed.failed_at and not failed.in_progress_at
        assert failed.output_file_id is failed.error_file_id is None
        assert failed.errors and failed.errors.data
        found = [(one.line, one.code, one.param) for one in failed.errors.data]
        assert found == [
            (2, "duplicate_custom_id", "custom_id"),
            (3, "invalid_json_line", None),
            (4, "invalid_url", "url"),
        ]
        good = await ended(client, (await ordered(client, chats(2))).id)
        assert good.status == "completed", "a bad batch is nothing to the next one"


REFUSED: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"endpoint": "/v1/images/edits"}, "endpoint"),
    ({"completion_window": "1h"}, "completion_window"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 600}}, "metadata[...]"),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
        "output_expires_after.seconds",
    ),
    ({"input_file_id": 5}, "input_file_id"),
    ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
)


async def test_orders_that_are_refused(tmp_path: Path, small_model: Path) -> None:
    good: Any = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}
    async with batch_service(tmp_path, small_model) as (_, client):
        for changed, param in REFUSED:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.batches.create(**(good | changed))
            assert refused.value.status_code == (404 if "etc" in str(changed) else 400), changed
            assert refused.value.param == param, changed
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_1")


async def test_a_list_goes_on_page_by_page(tmp_path: Path, small_model: Path) -> None:
    async with batch_service(tmp_path, small_model) as (_, client):
        ids = [(await ordered(client, chats(1))).id for _ in range(3)]
        assert [one.id async for one in client.batches.list(limit=2)] == ids[::-1]
        page = await client.batches.list(limit=2)
        assert page.has_more and [one.id for one in page.data] == ids[:0:-1]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.list(limit=0)
        assert refused.value.param == "limit"
        for batch_id in ids:
            await ended(client, batch_id)


async def test_cancelled_half_way(tmp_path: Path, small_model: Path) -> None:
    """What was answered is kept, and what was not is told of."""
    async with batch_service(tmp_path, small_model, "--gap-ms", "10") as (_, client):
        batch = await ordered(client, chats(300, max_tokens=10))
        await watched(client, batch.id, begun)
        said = await client.batches.cancel(batch.id)
        assert said.status == "cancelling" and said.cancelling_at
        done = await ended(client, batch.id)
        assert done.status == "cancelled" and done.cancelled_at and not done.completed_at
        good = await results(client, done.output_file_id)
        left = await results(client, done.error_file_id)
        assert good and left and len(good) + len(left) == 300
        assert {one["error"]["code"] for one in left} == {"batch_cancelled"}
        assert done.request_counts
        assert (done.request_counts.total, done.request_counts.completed) == (300, len(good))
        with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status"):
            await client.batches.cancel(batch.id)


async def test_what_the_day_does_not_answer_has_expired(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with batch_service(tmp_path, small_model, "--gap-ms", "10") as (_, client):
        batch = await ordered(client, chats(300, max_tokens=10))
        await watched(client, batch.id, begun)
        monkeypatch.setattr("workhorse.batch.api_record.WINDOW_S", 0.0)
        done = await ended(client, batch.id)
        assert done.status == "expired" and done.expired_at and done.finalizing_at
        left = await results(client, done.error_file_id)
        assert len(left) + len(await results(client, done.output_file_id)) == 300
        assert {one["error"]["code"] for one in left} == {"batch_expired"}


# --- keys ----------------------------------------------------------------------------------------


async def test_a_key_sees_its_own_alone_and_pays_for_it(tmp_path: Path, small_model: Path) -> None:
    keys = KeyStore(Places(tmp_path).service)
    ann = keys.add(Key("安娜 / ann"), time.time())
    bob = keys.add(Key("bob", models=("cow",)), time.time())
    async with batch_service(tmp_path, small_model, key=ann) as (service, client):
        done = await ended(client, (await ordered(client, chats(3))).id)
        assert done.status == "completed"
        async with client_of(service, bob) as other:
            assert [one async for one in other.files.list()] == []
            assert [one async for one in other.batches.list()] == []
            for asked in (
                other.batches.retrieve(done.id),
                other.batches.cancel(done.id),
                other.files.retrieve(done.input_file_id),
                other.files.content(done.output_file_id or ""),
                other.files.delete(done.input_file_id),
                other.batches.create(
                    input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            none = await ended(other, (await ordered(other, chats(1))).id)
            assert none.errors and none.errors.data
            assert none.errors.data[0].code == "model_not_found", "a model that is not bob's"
        async with client_of(service, "wrong") as nobody:
            with pytest.raises(openai.AuthenticationError):
                await nobody.batches.list()
        assert len([one async for one in client.files.list()]) == 2
    (row,) = read_usage(Places(tmp_path).service)
    assert (row.key, row.totals.requests) == ("安娜 / ann", 3)


async def test_revoking_a_key_ends_its_batches(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.serve.auth.READ_EVERY_S", 0.01)
    keys = KeyStore(Places(tmp_path).service)
    ann, bob = keys.add(Key("ann"), time.time()), keys.add(Key("bob"), time.time())
    async with batch_service(tmp_path, small_model, "--gap-ms", "10", key=ann) as (service, client):
        batch = await ordered(client, chats(300, max_tokens=10))
        async with client_of(service, bob) as other:
            his = await ordered(other, chats(20, max_tokens=10))
            await watched(client, batch.id, begun)
            keys.revoke("ann", time.time())
            assert (await ended(other, his.id)).status == "completed"
        store = service.batches._store
        await until(lambda: (found := store.batch(batch.id)) is not None and found.over)
        found = store.batch(batch.id)
        assert found and (found.status, found.counts.total) == ("cancelled", 300)
        assert found.counts.completed < 300
        assert [one.code for one in found.errors] == ["key_revoked"]


# --- the service ---------------------------------------------------------------------------------


async def test_a_batch_goes_on_in_the_next_service(tmp_path: Path, small_model: Path) -> None:
    """The one that ends does not wait for it."""
    async with batch_service(tmp_path, small_model, "--gap-ms", "10") as (service, client):
        batch = await ordered(client, chats(60, max_tokens=10))
        await watched(client, batch.id, begun)
    assert isinstance(service.tell, Listener)
    assert not any("may end first" in said for said in service.tell.said)
    async with batch_service(tmp_path, small_model, "--gap-ms", "1") as (_, client):
        done = await ended(client, batch.id)
        assert done.status == "completed"
        found = await results(client, done.output_file_id)
        assert [one["custom_id"] for one in found] == [f"r{n}" for n in range(60)]


async def test_one_service_has_the_batches_of_a_folder(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one says so, and takes over when the first has ended."""
    monkeypatch.setattr("workhorse.up.batches.TAKE_AGAIN_S", 0.05)
    async with AsyncExitStack() as later:
        async with batch_service(tmp_path, small_model) as (_, client):
            second = await later.enter_async_context(serving(tmp_path, small_model))
            other = await later.enter_async_context(client_of(second))
            sent = await client.files.create(file=("a", b"{}"), purpose="batch")
            with pytest.raises(openai.InternalServerError, match="another service") as refused:
                await other.files.create(file=("a", b"{}"), purpose="batch")
            assert refused.value.status_code == 503
        await until(lambda: second.batches.closed is None)
        assert [one.id async for one in other.files.list()] == [sent.id]


async def test_a_step_that_fails_is_its_own_and_is_done_again(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for a key's next batch: it does not stand behind the one that fails."""
    really, broken = api_work.run_job, True
    failed = asyncio.Event()

    async def run_job(ledger: Any, job_id: str, **told: Any) -> Any:
        batch_id = ledger.job(job_id).extra["batch"]
        if broken and batch_id == first.id:
            failed.set()
            raise RuntimeError("broken")
        return await really(ledger, job_id, **told)

    monkeypatch.setattr(api_work, "run_job", run_job)
    monkeypatch.setattr(api_work, "AGAIN_S", 0.1)
    async with batch_service(tmp_path, small_model) as (_, client):
        first = await ordered(client, chats(2))
        await failed.wait()
        second = await ended(client, (await ordered(client, chats(2))).id)
        assert second.status == "completed"
        assert (await client.batches.retrieve(first.id)).status == "in_progress"
        broken = False
        assert (await ended(client, first.id)).status == "completed"


async def test_an_input_that_is_deleted_before_it_is_read(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api_work.AT_ONCE, "read", 0)
    async with batch_service(tmp_path, small_model) as (_, client):
        batch = await ordered(client, chats(2))
        await client.files.delete(batch.input_file_id)
        monkeypatch.setitem(api_work.AT_ONCE, "read", 2)
        failed = await ended(client, batch.id)
        assert failed.errors and failed.errors.data
        assert failed.errors.data[0].code == "invalid_file"
        monkeypatch.setitem(api_work.AT_ONCE, "read", 0)
        early = await ordered(client, chats(2))
        await client.batches.cancel(early.id)
        assert (await ended(client, early.id)).status == "cancelled", "before it was read"


async def test_no_more_unfinished_batches_than_the_settings_allow(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api_work.AT_ONCE, "read", 0)
    config = "[batch]\nunfinished = 1\n"
    async with batch_service(tmp_path, small_model, config=config) as (_, client):
        first = await ordered(client, chats(1))
        with pytest.raises(openai.RateLimitError, match="1 batches are unfinished"):
            await ordered(client, chats(1))
        await client.batches.cancel(first.id)
        await ended(client, first.id)
        await ordered(client, chats(1))


async def test_chats_are_seen_beside_a_batch(tmp_path: Path, small_model: Path) -> None:
    async with batch_service(tmp_path, small_model, "--gap-ms", "10") as (service, client):
        batch = await ordered(client, chats(200, max_tokens=20))
        await watched(client, batch.id, begun)
        assert service.batches.chats("small") == 0
        assert service.activity.in_flight > 0
        stream: Any = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "Hello."}],
            max_tokens=3000,
            stream=True,
        )
        async with stream:
            await anext(aiter(stream))
            assert service.batches.chats("small") == 1
            # One slot is the chat's, and one stays free for whoever comes next.
            slots = service.batches.slots("small") or 0
            await until(lambda: service.activity.in_flight <= max(1, slots - 1))
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await client.batches.cancel(batch.id)
        assert (await ended(client, batch.id)).status == "cancelled"


async def test_behind_tls(tmp_path: Path, small_model: Path) -> None:
    leaf = trustme.CA().issue_cert("horse.example")
    (tmp_path / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    (tmp_path / "cert.pem").write_bytes(b"".join(one.bytes() for one in leaf.cert_chain_pems))
    config = '[serve]\ncertificate = "cert.pem"\nprivate_key = "key.pem"\n'
    async with batch_service(tmp_path, small_model, config=config) as (service, _):
        # As the files have it: the certificate is for another name than ours.
        store = service.batches._store
        input_file = store.path("file-1")
        input_file.write_bytes(chats(2))
        batch = Batch(
            id="batch_1",
            owner="",
            endpoint=CHAT,
            input_file_id="file-1",
            created_unix_s=time.time(),
        )
        store.add_batch(batch, 9)
        service.batches.changed()
        await until(lambda: (found := store.batch(batch.id)) is not None and found.over)
        found = store.batch(batch.id)
        assert found and (found.status, found.counts.completed) == ("completed", 2)
        assert found.output_file_id
        lines = store.path(found.output_file_id).read_text().splitlines()
        assert [json.loads(one)["custom_id"] for one in lines] == ["r0", "r1"]
