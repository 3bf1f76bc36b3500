"""TLS by files: what is served, what each mistake says, and renewal while it runs."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import trustme

from workhorse.errors import AppError
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Roster
from workhorse.serve.tls import CertificateFiles, certificate_files, follow, tls_context

PATIENCE_S = 120.0
NOW = datetime.now(UTC)
AUTHORITY = trustme.CA()
LEAF = AUTHORITY.issue_cert("localhost", "127.0.0.1")


def written(folder: Path, leaf: trustme.LeafCert = LEAF) -> CertificateFiles:
    files = CertificateFiles(folder / "cert.pem", folder / "key.pem")
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    files.private_key.write_bytes(leaf.private_key_pem.bytes())
    return files


async def test_clients_that_trust_it_are_served(tmp_path: Path) -> None:
    gateway = Gateway(build_app(Roster(), activity=Activity()), written(tmp_path))
    await gateway.start(port=0)
    trusting = ssl.create_default_context()
    AUTHORITY.configure_trust(trusting)
    try:
        assert gateway.url
        assert gateway.url.startswith("https://")
        async with aiohttp.ClientSession(gateway.url) as http:
            async with http.get("/healthz", ssl=trusting) as answer:
                assert answer.status == 503  # no engine: it is the gateway that answers
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await http.get("/healthz")
            plain = gateway.url.replace("https", "http")
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"{plain}/healthz")
    finally:
        await gateway.stop()


def missing_certificate(files: CertificateFiles) -> None:
    files.certificate.unlink()


def missing_key(files: CertificateFiles) -> None:
    files.private_key.unlink()


def folder_for_key(files: CertificateFiles) -> None:
    files.private_key.unlink()
    files.private_key.mkdir()


def another_key(files: CertificateFiles) -> None:
    other = AUTHORITY.issue_cert("localhost")
    files.private_key.write_bytes(other.private_key_pem.bytes())


def certificate_is_text(files: CertificateFiles) -> None:
    files.certificate.write_text("hello")


def key_is_text(files: CertificateFiles) -> None:
    files.private_key.write_text("hello")


def swapped(files: CertificateFiles) -> None:
    certificate, key = files.certificate.read_bytes(), files.private_key.read_bytes()
    files.certificate.write_bytes(key)
    files.private_key.write_bytes(certificate)


def locked_key(files: CertificateFiles) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.private_key.read_bytes(), None)
    files.private_key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


def expired(files: CertificateFiles) -> None:
    written(files.certificate.parent, AUTHORITY.issue_cert("localhost", not_after=NOW))


def not_yet(files: CertificateFiles) -> None:
    late = AUTHORITY.issue_cert("localhost", not_before=NOW + timedelta(days=2))
    written(files.certificate.parent, late)


@pytest.mark.parametrize(
    ("spoil", "file", "why"),
    [
        (missing_certificate, "cert.pem", "No such file"),
        (missing_key, "key.pem", "No such file"),
        (folder_for_key, "key.pem", "directory"),
        (another_key, "key.pem", "not the key of the certificate"),
        (certificate_is_text, "cert.pem", "no certificate in PEM form"),
        (key_is_text, "key.pem", "no private key in PEM form"),
        (swapped, "cert.pem", "no certificate in PEM form"),
        (locked_key, "key.pem", "locked with a password"),
        (expired, "cert.pem", "has expired"),
        (not_yet, "cert.pem", "not valid yet"),
    ],
)
def test_each_mistake_names_its_file(
    tmp_path: Path, spoil: Callable[[CertificateFiles], None], file: str, why: str
) -> None:
    files = written(tmp_path)
    spoil(files)
    with pytest.raises(AppError, match=rf"TLS cannot use \S*{file}: .*{why}.*\[serve\]"):
        tls_context(files)


def test_half_a_pair_of_settings() -> None:
    assert certificate_files(None, None) is None
    with pytest.raises(AppError, match="needs `private_key` too"):
        certificate_files("a", None)
    with pytest.raises(AppError, match="needs `certificate` too"):
        certificate_files(None, "b")


def serial(context: ssl.SSLContext) -> int | None:
    """The serial number that a client of the context sees."""
    client = ssl.create_default_context()
    AUTHORITY.configure_trust(client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    answering = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (asking, answering):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    certificate = asking.getpeercert() or {}
    return int(str(certificate["serialNumber"]), 16)


async def test_a_renewed_certificate_is_taken_into_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = written(tmp_path)
    context = tls_context(files)
    first = serial(context)
    following = asyncio.create_task(follow(context, files, every_s=0.001))
    await asyncio.sleep(0)  # it has seen the files as they are
    files.private_key.write_text("half of a renewal")
    os.utime(files.private_key, ns=(0, 1))
    async with asyncio.timeout(PATIENCE_S):
        while "stays" not in caplog.text:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0.001)
    assert serial(context) == first
    written(tmp_path, AUTHORITY.issue_cert("localhost"))
    async with asyncio.timeout(PATIENCE_S):
        while serial(context) == first:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0.001)
    following.cancel()


async def test_who_never_ends_the_handshake_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.serve.door.HANDSHAKE_S", 1)
    gateway = Gateway(build_app(Roster(), activity=Activity()), written(tmp_path))
    await gateway.start(port=0)
    try:
        port = int((gateway.url or "").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
    finally:
        await gateway.stop()


async def test_of_too_many_handshakes_the_oldest_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.serve.door.HANDSHAKES", 3)
    monkeypatch.setattr("workhorse.serve.door.HANDSHAKE_S", 3600)  # none is cut for its time
    gateway = Gateway(build_app(Roster(), activity=Activity()), written(tmp_path))
    await gateway.start(port=0)
    trusting = ssl.create_default_context()
    AUTHORITY.configure_trust(trusting)
    assert gateway.url is not None
    port = int(gateway.url.rpartition(":")[2])
    # All before the gateway looks again: it takes them in one turn of the loop.
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    opened = [await asyncio.open_connection(sock=one) for one in sockets]
    try:
        for reader, _ in opened[:5]:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        async with (
            aiohttp.ClientSession(gateway.url) as http,
            http.get("/healthz", ssl=trusting) as answer,
        ):
            assert answer.status == 503  # it is the gateway that answers
        assert not opened[7][0].at_eof()
    finally:
        for _, writer in opened:
            writer.close()
        await gateway.stop()
