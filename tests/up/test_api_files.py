"""OpenAI's files: sent, listed, fetched, deleted; and what must not be taken."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from api_scenes import batch_service, until

from workhorse.batch import api_upload
from workhorse.up.service import Service

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more

MIB = 1024 * 1024


def kept(service: Service) -> list[Path]:
    """What lies on the disk of all files."""
    return sorted((service.where.files / "content").iterdir())


async def test_a_file_and_its_life(tmp_path: Path, small_model: Path) -> None:
    content = bytes(range(256)) * 5000 + b"\r\n--x--\r\n"
    async with batch_service(tmp_path, small_model) as (service, client):
        sent = await client.files.create(file=("../../äß\n.jsonl", content), purpose="batch")
        assert sent.filename.endswith("äß.jsonl") or "\n" not in sent.filename
        assert (sent.object, sent.bytes, sent.purpose) == ("file", len(content), "batch")
        assert sent.status == "processed"
        assert sent.expires_at == sent.created_at + 30 * 86400
        assert kept(service) == [service.where.files / "content" / sent.id]
        assert await client.files.retrieve(sent.id) == sent
        assert (await client.files.content(sent.id)).content == content
        short: Any = {"anchor": "created_at", "seconds": 3600}
        other = await client.files.create(file=("b", b"b"), purpose="batch", expires_after=short)
        assert other.expires_at == other.created_at + 3600
        assert [one.id async for one in client.files.list(limit=1)] == [other.id, sent.id]
        listed = await client.files.list(order="asc", purpose="batch")
        assert [one.id for one in listed.data] == [sent.id, other.id] and not listed.has_more
        gone = await client.files.delete(sent.id)
        assert gone.deleted and gone.id == sent.id
        for asked in (client.files.retrieve(sent.id), client.files.content(sent.id)):
            with pytest.raises(openai.NotFoundError, match="No such File object"):
                await asked
        assert kept(service) == [service.where.files / "content" / other.id]


async def test_content_is_never_a_page_of_ours(tmp_path: Path, small_model: Path) -> None:
    async with batch_service(tmp_path, small_model) as (service, client):
        sent = await client.files.create(
            file=("a.html", b"<script>alert(1)</script>", "text/html"), purpose="batch"
        )
        async with (
            aiohttp.ClientSession(service.url) as http,
            http.get(f"/v1/files/{sent.id}/content") as answer,
        ):
            assert answer.headers["Content-Type"] == "application/octet-stream"
            assert answer.headers["Content-Disposition"] == "attachment"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_limits(tmp_path: Path, small_model: Path) -> None:
    """Of one file, of what is there, and of both told as the client's own mistake."""
    config = "[batch]\nupload_mib = 1\nkey_gib = 0.003\n[limits]\nbody_mib = 1\n"
    async with batch_service(tmp_path, small_model, config=config) as (service, client):
        assert (await client.files.create(file=("a", b"x" * MIB), purpose="batch")).bytes == MIB
        for size in (MIB + 1, 3 * MIB):
            with pytest.raises(openai.APIStatusError) as refused:
                await client.files.create(file=("a", b"x" * size), purpose="batch")
            assert refused.value.status_code == 413, size
        await client.files.create(file=("a", b"x" * MIB), purpose="batch")
        full = await client.files.create(file=("a", b"x" * (MIB // 2)), purpose="batch")
        with pytest.raises(openai.BadRequestError, match=r"more than 0\.003 GiB"):
            await client.files.create(file=("a", b"x" * MIB), purpose="batch")
        assert len(kept(service)) == 3
        await client.files.delete(full.id)
        for _ in range(8):  # each counts as 64 KiB
            await client.files.create(file=("a", b""), purpose="batch")


def form(*parts: tuple[str, bytes], end: bytes = b"--x--\r\n") -> bytes:
    """A form as it travels, from the heads of its parts."""
    told = b"".join(
        b"--x\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + body + b"\r\n"
        for head, body in parts
    )
    return told + end


FILE = ('name="file"; filename="a"', b"{}")
PURPOSE = ('name="purpose"', b"batch")
FORM = "multipart/form-data; boundary=x"
HOSTILE: dict[str, tuple[str, bytes, int]] = {
    "no form": ("application/json", b"{}", 400),
    "no boundary": ("multipart/form-data", form(FILE, PURPOSE), 400),
    "nothing": (FORM, b"", 400),
    "no parts": (FORM, form(), 400),
    "no file": (FORM, form(PURPOSE), 400),
    "no purpose": (FORM, form(FILE), 400),
    "another purpose": (FORM, form(FILE, ('name="purpose"', b"vision")), 400),
    "two files": (FORM, form(FILE, FILE, PURPOSE), 400),
    "no end": (FORM, form(FILE, PURPOSE, end=b""), 400),
    "cut in the file": (FORM, form(FILE, end=b"")[:-4], 400),
    "a long field": (FORM, form(FILE, ('name="purpose"', b"x" * 5000)), 400),
    "many parts": (FORM, form(FILE, *(("name=a", b"b") for _ in range(50)), PURPOSE), 400),
    "a long head": (FORM, form((f'name="file"; filename="{"a" * 100_000}"', b"{}"), PURPOSE), 400),
    "a form within": (
        FORM,
        b"--x\r\nContent-Type: multipart/mixed; boundary=y\r\n\r\n--y--\r\n--x--\r\n",
        400,
    ),
    "a long first line": (FORM, b"y" * 500_000 + form(FILE, PURPOSE), 400),
    "a wrong anchor": (FORM, form(FILE, PURPOSE, ('name="expires_after[anchor]"', b"x")), 400),
    "a short life": (
        FORM,
        form(
            FILE,
            PURPOSE,
            ('name="expires_after[anchor]"', b"created_at"),
            ('name="expires_after[seconds]"', b"-5"),
        ),
        400,
    ),
    "the purpose last": (FORM, form(FILE, PURPOSE), 200),
    "the purpose first": (FORM, form(PURPOSE, FILE), 200),
    "a file without a name": (FORM, form(PURPOSE, ('name="file"', b"{}")), 200),
}


async def test_forms_that_are_odd(tmp_path: Path, small_model: Path) -> None:
    async with (
        batch_service(tmp_path, small_model) as (service, _),
        aiohttp.ClientSession(service.url) as http,
    ):
        good = 0
        for name, (kind, body, status) in HOSTILE.items():
            asked = http.post("/v1/files", data=body, headers={"Content-Type": kind})
            async with asked as answer:
                found = await answer.json()
                assert answer.status == status, (name, found)
                assert status == 200 or found["error"]["type"] == "invalid_request_error", name
            good += status == 200
            assert len(kept(service)) == good, name


async def test_who_leaves_or_stops_sending_leaves_nothing(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_upload, "PAUSE_S", 0.2)
    monkeypatch.setattr(api_upload, "BLOCK_BYTES", 1)
    async with batch_service(tmp_path, small_model) as (service, _):
        head = form(FILE, end=b"")[:-2]
        lines = (
            "POST /v1/files HTTP/1.1",
            f"Host: localhost:{service.port}",
            f"Content-Type: {FORM}",
            f"Content-Length: {len(head) + 1000}",
        )
        for leaves in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write("\r\n".join((*lines, "", "")).encode() + head + b"x" * 200)
            await writer.drain()
            if leaves:
                await until(lambda: kept(service))
            else:
                assert b" 408 " in await reader.readline()
            writer.close()
            await until(lambda: not kept(service))


async def test_a_form_in_chunks_is_bounded_too(tmp_path: Path, small_model: Path) -> None:
    """Its length is not told before."""

    async def pieces() -> Any:
        yield form(PURPOSE, end=b"")
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 65536
        yield b"\r\n--x--\r\n"

    config = "[batch]\nupload_mib = 1\n"
    async with (
        batch_service(tmp_path, small_model, config=config) as (service, _),
        aiohttp.ClientSession(service.url) as http,
        http.post("/v1/files", data=pieces(), headers={"Content-Type": FORM}) as answer,
    ):
        assert answer.status == 413
        assert kept(service) == []


async def test_one_owner_does_not_take_every_place(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_upload, "MOST_OF_ONE", 1)
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        yield b"first"
        arrived.set()
        await go_on.wait()
        yield b"second"

    async with (
        batch_service(tmp_path, small_model) as (service, client),
        aiohttp.ClientSession(service.url) as http,
    ):
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", slow(), filename="slow")
        first = asyncio.create_task(http.post("/v1/files", data=form))
        await arrived.wait()
        with pytest.raises(openai.RateLimitError, match="1 files are being sent with this key"):
            await client.with_options(max_retries=0).files.create(file=("b", b"b"), purpose="batch")
        go_on.set()
        assert (await first).status == 200
        await client.files.create(file=("b", b"b"), purpose="batch")
