"""TLS from two PEM files: loaded, proven by a handshake with itself, loaded anew when renewed."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

LOOK_EVERY_S = 60.0  # certificates are renewed weeks before they end

# X509_V_ERR_* of OpenSSL's `x509_vfy.h` (2026-11).
_NOT_YET_VALID, _HAS_EXPIRED = 9, 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The certificate (with its chain) and its private key."""

    certificate: Path
    private_key: Path

    def changed_ns(self) -> tuple[int, int]:
        """When each was changed; zeros where one is gone."""
        return _changed_ns(self.certificate), _changed_ns(self.private_key)


def certificate_files(certificate: str | None, private_key: str | None) -> CertificateFiles | None:
    """The files that the settings name; None: no TLS. AppError when one of the two is missing."""
    if certificate is None and private_key is None:
        return None
    if certificate is None or private_key is None:
        missing = "certificate" if certificate is None else "private_key"
        raise AppError(
            Text(f"TLS needs `{missing}` too.", f"TLS 还需要 `{missing}`。"),
            Text(
                "Set `certificate` and `private_key` of `[serve]`, or none of them.",
                "请在 `[serve]` 中同时设置 `certificate` 与 `private_key`，或都不设。",
            ),
            speaker="gateway",
            exit_code=EXIT_USAGE,
        )
    return CertificateFiles(Path(certificate), Path(private_key))


def tls_context(files: CertificateFiles) -> ssl.SSLContext:
    """What a server needs to speak TLS with these files; AppError says which one is at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load(context, files)
    return context


def load(context: ssl.SSLContext, files: CertificateFiles) -> None:
    """Load the files into a context, which then uses them for new connections."""
    for path in (files.certificate, files.private_key):
        try:
            path.read_bytes()
        except OSError as error:
            raise _unusable(path, Text(error.strerror or str(error), "无法读取")) from error
    try:
        context.load_cert_chain(files.certificate, files.private_key, password=_no_password)
    except ssl.SSLError as error:
        raise _why_not_loaded(files, error) from error
    except ValueError as error:
        why = Text("it is locked with a password", "私钥带有口令")
        raise _unusable(files.private_key, why) from error
    _refuse_outdated(context, files.certificate)


def following(
    context: ssl.SSLContext, files: CertificateFiles
) -> Callable[[web.Application], AsyncIterator[None]]:
    """What has an application take renewed files into use as long as it runs."""

    async def running(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(follow(context, files), name="certificate")
        yield
        task.cancel()
        await asyncio.wait({task})

    return running


async def follow(
    context: ssl.SSLContext, files: CertificateFiles, every_s: float = LOOK_EVERY_S
) -> None:
    """Take renewed files into use, for ever; files that cannot be used change nothing."""
    seen = files.changed_ns()
    while True:
        await asyncio.sleep(every_s)
        if (now := files.changed_ns()) == seen:
            continue
        seen = now
        try:
            tls_context(files)  # first apart: half a pair would spoil the one in use
            load(context, files)
            log.info("The certificate %s was renewed.", files.certificate)
        except (AppError, OSError) as error:  # a file may go between two looks at it
            log.warning("The certificate in use stays: %s", error)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _no_password() -> str:
    raise ValueError  # OpenSSL would ask at the terminal


def _why_not_loaded(files: CertificateFiles, error: ssl.SSLError) -> AppError:
    if error.reason == "KEY_VALUES_MISMATCH":
        why = Text(
            f"it is not the key of the certificate {files.certificate}",
            f"它与证书 {files.certificate} 不匹配",
        )
        return _unusable(files.private_key, why)
    alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        alone.load_verify_locations(files.certificate)
    except ssl.SSLError:
        return _unusable(files.certificate, Text("no certificate in PEM form", "不是 PEM 证书"))
    return _unusable(files.private_key, Text("no private key in PEM form", "不是 PEM 私钥"))


def _refuse_outdated(context: ssl.SSLContext, certificate: Path) -> None:
    """Shake hands with ourselves, trusting this certificate alone: OpenSSL judges its dates."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # TLS 1.2 takes two turns, 1.3 one and a half
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                if error.verify_code == _HAS_EXPIRED:
                    raise _unusable(certificate, Text("it has expired", "证书已过期")) from error
                if error.verify_code == _NOT_YET_VALID:
                    why = Text(
                        "it is not valid yet: see the clock of this machine",
                        "证书尚未生效，请检查本机时钟",
                    )
                    raise _unusable(certificate, why) from error
                return  # clients judge the rest by what they trust


def _unusable(path: Path, why: Text) -> AppError:
    return AppError(
        Text(f"TLS cannot use {path}: {why.en}.", f"TLS 无法使用 {path}：{why.zh}。"),
        Text(
            "Set `certificate` and `private_key` of `[serve]` to a PEM certificate and its key.",
            "请把 `[serve]` 的 `certificate` 与 `private_key` 设为 PEM 证书及其私钥。",
        ),
        speaker="gateway",
        exit_code=EXIT_USAGE,
    )
