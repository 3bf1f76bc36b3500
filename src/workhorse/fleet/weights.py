"""Brings weights to this node: from the head, or from a node that has them already; checked."""

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workhorse.errors import AppError
from workhorse.fleet.spec import WeightsSource
from workhorse.fleet.weights_share import WeightsShare
from workhorse.models.hub import Digest
from workhorse.models.part_file import check_space, local_errors, locked_file, sha256_of
from workhorse.models.pull_file import WrongDigest, pull_file
from workhorse.models.pull_record import RECORD, note_files, read_record, stamped, untouched
from workhorse.models.pull_tries import STALL_S, Manner, Wanted
from workhorse.models.refusals import shown
from workhorse.models.remote import Unreachable
from workhorse.models.remote_file import Refused
from workhorse.text import Text

# Two keep a fast line busy and leave the holder's disk to read in order.
CONNECTIONS = 2
ASK_TIMEOUT_S = 10.0
# The head hears so often that a transfer goes on; see LEASE_S.
TELL_EVERY_S = 10.0
# Of one file, each from another holder: after these something else is wrong.
HOLDERS_TRIED_MAX = 8
LOCK = ".fetching"
FILES_MAX = 2000


@dataclass(frozen=True, slots=True)
class Fetch:
    """How a node fetches, and whom it tells.

    `share`: this node's own server, over the folder that is fetched into, so that the files can
    be given on. `progress` is called with bytes here and bytes in all.
    """

    key: str  # the fleet's replica key
    node: str = ""  # the node's name, for those who look on
    share: WeightsShare | None = None
    tell: Callable[[Text], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda _done, _total: None
    pause: Callable[[float], None] = time.sleep
    stall_s: float = STALL_S

    @property
    def headers(self) -> dict[str, str]:
        """What each request brings."""
        return {"Authorization": f"Bearer {self.key}"}


def fetch(sources: Sequence[WeightsSource], into: Path, how: Fetch) -> Path:
    """All files of a model, side by side in a folder of their own below `into`.

    Returns what the engine is given: the first file, or the folder of a checkpoint. Blocks. A
    file that is here and right is not fetched again; one node fetches one thing at a time, other
    processes wait. Whatever ends it, the next call goes on from there. Raises AppError.
    """
    _check_names(sources)
    folder = into / sources[0].sha256
    with _alone(into, how):
        with local_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        missing = [source for source in sources if not _is_here(source, folder)]
        needed = sum(source.n_bytes - _part_bytes(folder / source.file_name) for source in missing)
        check_space(folder, max(0, needed))
        total = sum(source.n_bytes for source in sources)
        done = total - sum(source.n_bytes for source in missing)
        for source in missing:
            _Bringing(source, folder, how, done, total).run()
            done += source.n_bytes
    for source in sources:
        _say_have(source, how)
    first = folder / sources[0].file_name
    return first if first.name.endswith(".gguf") else folder


@dataclass(slots=True)
class _Bringing:
    """One file, from whoever the head names."""

    source: WeightsSource
    folder: Path
    how: Fetch
    before: int  # bytes of the files before it
    total: int
    told_s: float = float("-inf")

    def run(self) -> None:
        """Return when the file is here and right."""
        failed: str | None = None
        for _ in range(HOLDERS_TRIED_MAX):
            url = self._turn(failed)
            try:
                self._pull(url)
                return
            except WrongDigest as error:
                if url == self.source.urls[-1]:
                    raise self._changed(url) from error
                why, failed = error.what, url
            except Unreachable as error:
                if url == self.source.urls[-1]:
                    raise
                why, failed = error.what, url
            place = shown(urlsplit(url).netloc)
            self.how.tell(
                Text(
                    f"{self.source.file_name}: {place} did not give it ({why.en}) Trying another.",
                    f"{self.source.file_name}：未能从 {place} 取得（{why.zh}）换另一处重试。",
                )
            )
        raise Unreachable(
            Text(
                f"{shown(self.source.file_name)} could not be had from {HOLDERS_TRIED_MAX} places.",
                f"已尝试 {HOLDERS_TRIED_MAX} 处，均未取得 {shown(self.source.file_name)}。",
            ),
            Text("Check the network between the nodes.", "请检查节点之间的网络。"),
        )

    def _changed(self, url: str) -> AppError:
        name, place = self.source.file_name, shown(urlsplit(url).netloc)
        return AppError(
            Text(
                f"{name} of {place} is not the file that was ordered: its SHA-256 is another. What "
                "came was removed.",
                f"{place} 上的 {name} 不是所指定的文件：SHA-256 不符。已删除收到的内容。",
            ),
            Text(
                "The file on the head has changed or is damaged: run `workhorse fleet up` again, "
                "which hashes it anew.",
                "主节点上的文件已改变或损坏：请重新运行 `workhorse fleet up`，届时会重新计算哈希。",
            ),
        )

    def _turn(self, failed: str | None) -> str:
        """Who gives it to us; waits while all who have it are busy.

        Without an answer from the head, the addresses that came with the order are taken in turn.
        """
        asked, waited = {"node": self.how.node, "failed": failed}, False
        while True:
            answer = _post(self.source.urls[0], "turn", asked, self.how)
            if answer is None:
                urls = self.source.urls
                at = urls.index(failed) + 1 if failed in urls else 0
                return urls[min(at, len(urls) - 1)]
            url = answer.get("url")
            if isinstance(url, str):
                return url
            if not waited:
                waited = True
                self.how.tell(
                    Text(
                        f"{self.source.file_name}: all nodes that have it are giving it to others; "
                        "waiting.",
                        f"{self.source.file_name}：拥有该文件的节点都在向其他节点发送，等待中。",
                    )
                )
            wait_s = answer.get("wait_s")
            self.how.pause(min(30.0, float(wait_s)) if isinstance(wait_s, int | float) else 2.0)

    def _pull(self, url: str) -> None:
        source, how = self.source, self.how
        digest = Digest("sha256", source.sha256)
        path = self.folder / source.file_name
        place = shown(urlsplit(url).netloc)
        how.tell(Text(f"fetching {path.name} from {place}", f"正在从 {place} 获取 {path.name}"))
        manner = Manner(
            how.headers,
            CONNECTIONS,
            how.tell,
            self._step,
            how.stall_s,
            how.pause,
            direct=True,
        )
        wanted = Wanted(path.name, (url,), source.n_bytes, digest)
        try:
            pull_file(
                wanted,
                path,
                manner,
                lambda: _is_here(source, self.folder),
                lambda version: note_files(
                    self.folder, {path.name: stamped(path, place, version.etag, digest)}
                ),
            )
        except Refused as refusal:
            raise refusal.explained() from refusal

    def _step(self, done_bytes: int, _: int | None) -> None:
        self.how.progress(self.before + done_bytes, self.total)
        now_s = time.monotonic()
        if now_s - self.told_s >= TELL_EVERY_S:
            self.told_s = now_s
            told = {"node": self.how.node, "done_bytes": done_bytes}
            _post(self.source.urls[0], "kept", told, self.how)


def _say_have(source: WeightsSource, how: Fetch) -> None:
    """The head learns that the file is here, and where this node gives it on."""
    port = how.share.port if how.share is not None else None
    _post(source.urls[0], "have", {"node": how.node, "port": port}, how)


def _post(url: str, what: str, asked: dict[str, Any], how: Fetch) -> dict[str, Any] | None:
    """What the head says; None when it says nothing that can be used. Never through a proxy."""
    parts = urlsplit(url)
    # The head learns our address from the connection: it has to be the one that we serve at.
    own = (how.share.host, 0) if how.share is not None and how.share.host else None
    with suppress(OSError, http.client.HTTPException, ValueError):
        link = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=ASK_TIMEOUT_S, source_address=own
        )
        try:
            body = json.dumps(asked)
            link.request("POST", f"{parts.path}/{what}", body, how.headers)
            answer = link.getresponse()
            document = json.loads(answer.read(65536)) if answer.status == 200 else None
            return document if isinstance(document, dict) else None
        finally:
            link.close()
    return None


def _is_here(source: WeightsSource, folder: Path) -> bool:
    """Whether the file is here and right; hashed unless it was, and is untouched."""
    path = folder / source.file_name
    with local_errors(path):
        if not path.is_file() or path.stat().st_size != source.n_bytes:
            return False
        noted = read_record(folder).files.get(path.name)
        digest = Digest("sha256", source.sha256)
        if noted is not None and noted.digest == digest and untouched(path, noted):
            return True
        if sha256_of(path) != source.sha256:
            return False
        note_files(folder, {path.name: stamped(path, "found here", None, digest)})
        return True


def _part_bytes(path: Path) -> int:
    """What an earlier fetch has left of the file on the disk."""
    with suppress(OSError):
        return path.with_name(path.name + ".part").stat().st_blocks * 512
    return 0


def _check_names(sources: Sequence[WeightsSource]) -> None:
    """The names are plain: whoever made the list, nothing outside the folder is written."""
    for source in sources:
        name = source.file_name
        plain = 0 < len(name) <= 200 and not set(name) & set("/\\\0") and not name.startswith(".")
        hexed = len(source.sha256) == 64 and not set(source.sha256) - set("0123456789abcdef")
        if not plain or not hexed or name == RECORD or not source.urls or source.n_bytes < 0:
            raise _strange_list(name)
    names = {source.file_name for source in sources}
    if not sources or len(names) != len(sources) or len(sources) > FILES_MAX:
        raise _strange_list(", ".join(sorted(names))[:200])


def _strange_list(name: str) -> AppError:
    return AppError(
        Text(
            f"The list of weights has a file that no node takes: {shown(name)}.",
            f"权重列表中含有节点不接受的文件：{shown(name)}。",
        ),
        Text(
            "Give the files plain names of their own, then start the fleet again.",
            "请给文件取普通且互不相同的名称，然后重新启动集群。",
        ),
    )


@contextmanager
def _alone(into: Path, how: Fetch) -> Iterator[None]:
    """One fetch a node at a time: two would share its line, and both come late."""
    told: list[bool] = []

    def waiting(_: int) -> None:
        if not told:
            told.append(True)
            how.tell(
                Text(
                    "Another process of this node is fetching: waiting for it.",
                    "本节点的另一进程正在获取权重，等待其完成。",
                )
            )

    with local_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        handle = locked_file(into / LOCK, waiting)
    try:
        yield
    finally:
        os.close(handle)
