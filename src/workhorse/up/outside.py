"""A running service seen from another command of the same machine: found, asked, reloaded."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from workhorse.codec import from_json
from workhorse.config import SHARED, Places
from workhorse.errors import AppError
from workhorse.run.run_file import ServiceFile, service_files
from workhorse.text import Text
from workhorse.up.control import RELOAD_PATH, STATUS_PATH
from workhorse.up.status import ServiceStatus

ANSWER_WITHIN_S = 5.0
LARGEST_BYTES = 16 * 1024 * 1024


def services(where: Places, port: int | None = None) -> list[ServiceFile]:
    """The services of this user, and of the system where they can be read, that live here."""
    folders = dict.fromkeys((where.run, Places(SHARED).run))
    found = [file for folder in folders for file in files_in(folder) if file.lives()]
    return [file for file in found if port in (None, file.port)]


def files_in(folder: Path) -> list[ServiceFile]:
    """The services that are written down in a folder; none where we may not look."""
    try:
        return [file for _, file in service_files(folder)]
    except OSError:
        return []


def status_of(file: ServiceFile) -> ServiceStatus:
    """How the service is; `silent` when it does not answer within some seconds."""
    try:
        with closing(connected(file, ANSWER_WITHIN_S)) as connection:
            connection.request("GET", STATUS_PATH, headers=spoken_for(file))
            answer = connection.getresponse()
            document = answer.read(LARGEST_BYTES)
        if answer.status == 200:
            return from_json(ServiceStatus, document, what="status")
    except (OSError, http.client.HTTPException, AppError):
        pass
    return ServiceStatus("silent", file.url, file.service.pid, None, file.started_unix_s)


def reload(file: ServiceFile, *, restart: bool) -> Iterator[dict[str, Any]]:
    """Ask for a reload; each thing that is being done as it comes, then what came of it.

    A document has `stage`, `changes` or `error`. Waits as long as the reload takes.
    """
    query = "?restart=1" if restart else ""
    try:
        with closing(connected(file, None)) as connection:
            connection.request("POST", RELOAD_PATH + query, b"", spoken_for(file))
            answer = connection.getresponse()
            if answer.status != 200:
                raise refused(file, answer.status, answer.read(2000).decode(errors="replace"))
            while line := answer.readline(LARGEST_BYTES):
                yield msgspec.json.decode(line)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise lost(file, error) from error


def connected(file: ServiceFile, timeout_s: float | None) -> http.client.HTTPConnection:
    """A connection to the service, by no proxy."""
    address = urlsplit(file.url)
    host, port = address.hostname or "", address.port
    if address.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    # The certificate names the service as others reach it; here the token says who it is.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def spoken_for(file: ServiceFile) -> dict[str, str]:
    """What shows the service that the asker may read its file."""
    return {"Authorization": f"Bearer {file.token}", "Host": f"localhost:{file.port}"}


def refused(file: ServiceFile, status: int, said: str) -> AppError:
    """The service did not do what it was asked for."""
    return AppError(
        Text(
            f"The service on port {file.port} refused (HTTP {status}): {said}",
            f"端口 {file.port} 上的服务拒绝了请求（HTTP {status}）：{said}",
        ),
        Text("Ask as the user who started it.", "请以启动该服务的用户身份运行。"),
    )


def lost(file: ServiceFile, error: Exception) -> AppError:
    """The service went away while it was asked."""
    return AppError(
        Text(
            f"The service on port {file.port} stopped answering: {error}.",
            f"端口 {file.port} 上的服务不再应答：{error}。",
        ),
        Text("`workhorse status` says how it is.", "请用 `workhorse status` 查看其状态。"),
    )
