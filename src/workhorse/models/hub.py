"""Lists and opens the files of a repository on Hugging Face, a mirror of it, or ModelScope."""

import difflib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from workhorse.errors import AppError
from workhorse.models.cursor import ReadAt
from workhorse.models.refusals import shown
from workhorse.models.remote import Unreachable, refused
from workhorse.models.remote_file import FIRST_PIECE_BYTES, Refused, RemoteFile, fetch_document
from workhorse.models.sources import HubSource
from workhorse.text import Text
from workhorse.units import MIB

T = TypeVar("T")

LISTING_BYTES_MAX = 8 * MIB
PAGES_MAX = 20  # of 1,000 files each on Hugging Face
FILES_MAX = 20_000
NEAR_NAMES = 3
_NEXT_PAGE = re.compile(r'<([^>]+)>;\s*rel="?next"?')


class _HfLfs(msgspec.Struct):
    oid: str | None = None  # the SHA-256


class _HfEntry(msgspec.Struct):
    path: str
    type: str = "file"
    size: int | None = None
    oid: str | None = None  # git's own hash of a small file
    lfs: _HfLfs | None = None


class _HfSibling(msgspec.Struct):
    rfilename: str
    size: int | None = None


class _HfRepository(msgspec.Struct):
    siblings: list[_HfSibling]


class _MsEntry(msgspec.Struct):
    Path: str = ""
    Type: str = "blob"
    Size: int | None = None
    Sha256: str | None = None


class _MsFiles(msgspec.Struct):
    Files: list[_MsEntry] | None = None


class _MsListing(msgspec.Struct):
    Code: int = 200
    Message: str | None = None
    Data: _MsFiles | None = None


@dataclass(frozen=True, slots=True)
class Digest:
    """The hash by which the hub knows a file, in hex: SHA-256, or git's SHA-1 of a small file."""

    kind: Literal["sha256", "git-sha1"]
    value: str


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    size_bytes: int | None = None
    digest: Digest | None = None


class HubFolder:
    """The files of one repository. All errors are AppError in the user's words."""

    def __init__(
        self,
        source: HubSource,
        environment: Mapping[str, str],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.source = source
        self.label = source.label
        self._pause = pause
        self._listing: dict[str, int | None] | None = None
        self._digests: dict[str, Digest] = {}
        token = environment.get("HF_TOKEN", "").strip() if source.hub == "hf" else ""
        self._headers = {"Authorization": f"Bearer {_checked(token)}"} if token else {}

    @property
    def headers(self) -> dict[str, str]:
        """What requests to the hub itself carry; not for the hosts that it redirects to."""
        return dict(self._headers)

    def name_of(self, file: str) -> str:
        """How errors and records call one file."""
        return f"{self.label}:{file}"

    def listing(self) -> dict[str, int | None]:
        """Every file of the repository with its size in bytes (None: not said)."""
        if self._listing is None:
            try:
                found = self._list_hf() if self.source.hub == "hf" else self._list_ms()
            except Refused as refusal:
                raise self.explained(refusal, None) from refusal
            entries = [entry for entry in found if entry.path.isprintable()]
            self._listing = {entry.path: entry.size_bytes for entry in entries}
            self._digests = {e.path: e.digest for e in entries if e.digest is not None}
        return self._listing

    def digests(self) -> dict[str, Digest]:
        """The hashes that the hub's listing gives, by file; a mirror may give none."""
        self.listing()
        return self._digests

    def opened(self, file: str, first_piece_bytes: int = FIRST_PIECE_BYTES) -> tuple[ReadAt, int]:
        """Positioned reads of one file, and its size."""

        def ask(address: str) -> tuple[ReadAt, int]:
            remote = RemoteFile(
                address, self._headers, first_piece_bytes=first_piece_bytes, pause=self._pause
            )
            return remote.read_at, remote.size_bytes

        try:
            return self._from_first(file, ask)
        except Refused as refusal:
            raise self.explained(refusal, file) from refusal

    def document(self, file: str, max_bytes: int) -> bytes | None:
        """A small file whole; None when the repository has none of that name."""
        if self._listing is not None and file not in self._listing:
            return None
        try:
            return self._from_first(
                file, lambda at: fetch_document(at, self._headers, max_bytes, self._pause)[0]
            )
        except Refused as refusal:
            if refusal.status == 404 and self._code(refusal.headers) in ("EntryNotFound", ""):
                return None
            raise self.explained(refusal, file) from refusal

    def addresses(self, file: str) -> list[str]:
        """Where one file is; ModelScope has two doors, and a mirror of it may have either."""
        source = self.source
        revision, path = quote(source.revision, safe=""), quote(file)
        if source.hub == "hf":
            return [f"{source.endpoint}/{source.repo}/resolve/{revision}/{path}"]
        question = urlencode({"Revision": source.revision, "FilePath": file})
        return [
            f"{source.endpoint}/models/{source.repo}/resolve/{revision}/{path}",
            f"{source.endpoint}/api/v1/models/{source.repo}/repo?{question}",
        ]

    def _from_first(self, file: str, ask: Callable[[str], T]) -> T:
        """What `ask` gets from the first address that knows the file."""
        *earlier, last = self.addresses(file)
        for address in earlier:
            try:
                return ask(address)
            except Refused as refusal:
                if refusal.status != 404:
                    raise
        return ask(last)

    def _list_hf(self) -> list[_Entry]:
        source = self.source
        revision = quote(source.revision, safe="")
        url = f"{source.endpoint}/api/models/{source.repo}/tree/{revision}?recursive=true"
        found: list[_Entry] = []
        for page in range(PAGES_MAX):
            try:
                raw, headers = self._page(url)
            except Refused as refusal:
                if page or refusal.status != 404 or self._code(refusal.headers):
                    raise
                return self._list_siblings(refusal)
            entries = self._decoded(raw, list[_HfEntry], url)
            found += [
                _Entry(entry.path, entry.size, _hf_digest(entry))
                for entry in entries
                if entry.type == "file"
            ]
            following = _NEXT_PAGE.search(str(headers.get("Link", "")))
            if following is None or not entries or len(found) > FILES_MAX:
                break
            # A mirror may hand the hub's own address on: ask the mirror all the same.
            _, _, question = following[1].partition("?")
            url = f"{url.partition('?')[0]}?{question}"
        return found[:FILES_MAX]

    def _list_siblings(self, refused_tree: Refused) -> list[_Entry]:
        """The files without their sizes, from mirrors that know no `tree`."""
        source = self.source
        revision = quote(source.revision, safe="")
        url = f"{source.endpoint}/api/models/{source.repo}/revision/{revision}"
        try:
            raw, _ = self._page(url)
        except Refused:
            raise refused_tree from None
        found = self._decoded(raw, _HfRepository, url).siblings
        return [_Entry(sibling.rfilename, sibling.size) for sibling in found][:FILES_MAX]

    def _list_ms(self) -> list[_Entry]:
        source = self.source
        question = urlencode({"Revision": source.revision, "Recursive": "true"})
        url = f"{source.endpoint}/api/v1/models/{source.repo}/repo/files?{question}"
        raw, _ = self._page(url)
        listing = self._decoded(raw, _MsListing, url)
        if listing.Data is None or listing.Data.Files is None:
            said = shown((listing.Message or "")[:200]) or f"code {listing.Code}"
            raise refused(url, said, said)
        blobs = (entry for entry in listing.Data.Files if entry.Type != "tree" and entry.Path)
        return [_Entry(entry.Path, entry.Size, _digest("sha256", entry.Sha256)) for entry in blobs][
            :FILES_MAX
        ]

    def _page(self, url: str) -> tuple[bytes, Message]:
        return fetch_document(url, self._headers, LISTING_BYTES_MAX, self._pause)

    def _decoded(self, raw: bytes, kind: type[T], url: str) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise refused(
                url,
                "its list of files is not one (a login page or a proxy's answer?)",
                "返回的不是文件列表（可能是登录页面或代理的页面）",
            ) from error

    def _code(self, headers: Message) -> str:
        return str(headers.get("X-Error-Code", ""))

    def explained(self, refusal: Refused, file: str | None) -> AppError:
        """The error for the user: what the hub's refusal means, and the one thing to do."""
        code = self._code(refusal.headers)
        if code == "GatedRepo":
            return self._gated()
        if code == "RevisionNotFound":
            return self._no_revision()
        if refusal.status in (401, 403):
            return self._closed(refusal.status)
        if refusal.status == 404 and (file is None or code == "RepoNotFound"):
            return self._no_repository()
        if refusal.status == 404 and file is not None:
            return self.no_such_file(file)
        return refusal.explained()

    def _closed(self, status: int) -> Unreachable:
        """Hugging Face says 401 for what is private and for what is not there at all."""
        source = self.source
        return Unreachable(
            Text(
                f"{source.label} is not open to everybody (HTTP {status}): it is gated or private, "
                "or there is no such model.",
                f"{source.label} 不对所有人开放（HTTP {status}）：需要授权、是私有模型，或不存在。",
            ),
            Text(
                f"Check the name and its terms at {source.page}; then set HF_TOKEN to a token of "
                "an account that has access.",
                f"请在 {source.page} 核对名称与条款，然后把 HF_TOKEN 设为有权限账户的令牌。",
            )
            if source.hub == "hf"
            else Text(
                f"Check the name and its terms at {source.page}; closed models must be downloaded "
                "with its own tools.",
                f"请在 {source.page} 核对名称与条款；受限模型需用其官方工具下载。",
            ),
        )

    def _gated(self) -> Unreachable:
        source = self.source
        if self._headers:
            return Unreachable(
                Text(
                    f"{source.label} is gated, and the account of HF_TOKEN has no access.",
                    f"{source.label} 需要授权，而 HF_TOKEN 对应的账户无权访问。",
                ),
                Text(
                    f"Ask for access at {source.page} with that account.",
                    f"请用该账户在 {source.page} 申请访问。",
                ),
            )
        return Unreachable(
            Text(
                f"{source.label} is gated: its publisher wants its terms accepted.",
                f"{source.label} 需要授权：发布者要求先接受其条款。",
            ),
            Text(
                f"Accept them at {source.page}, then set HF_TOKEN to a token of your account.",
                f"请在 {source.page} 接受条款，然后把 HF_TOKEN 设为你账户的令牌。",
            ),
        )

    def _no_repository(self) -> Unreachable:
        source = self.source
        return Unreachable(
            Text(
                f"{shown(source.endpoint)} has no model {source.repo}.",
                f"{shown(source.endpoint)} 上没有模型 {source.repo}。",
            ),
            Text(
                "Check the name: owner/name, as its page has it.",
                "请核对名称：应为页面上的“所有者/名称”。",
            ),
        )

    def _no_revision(self) -> Unreachable:
        source = self.source
        return Unreachable(
            Text(
                f"{source.hub}:{source.repo} has no revision {shown(source.revision)}.",
                f"{source.hub}:{source.repo} 没有版本 {shown(source.revision)}。",
            ),
            Text("Leave out the @revision.", "请去掉 @版本。"),
        )

    def no_such_file(self, file: str) -> AppError:
        """The error for a file that is not there, with the names that are nearest to it."""
        try:
            names = list(self.listing())
        except AppError:  # the first trouble is what the user must hear of
            names = []
        return no_such_file(self.label, file, names)


def _hf_digest(entry: _HfEntry) -> Digest | None:
    if entry.lfs is not None:
        return _digest("sha256", entry.lfs.oid)
    return _digest("git-sha1", entry.oid)


def _digest(kind: Literal["sha256", "git-sha1"], value: str | None) -> Digest | None:
    """What a listing says, when it can be such a hash."""
    value = (value or "").lower()
    letters = 64 if kind == "sha256" else 40
    real = len(value) == letters and not set(value) - set("0123456789abcdef")
    return Digest(kind, value) if real else None


def _checked(token: str) -> str:
    """The token, when it can be one: what is wrong with it must not be printed by others."""
    if token.isascii() and token.isprintable() and " " not in token:
        return token
    raise AppError(
        Text(
            "HF_TOKEN is no token: it has letters that none has.",
            "HF_TOKEN 不是有效令牌：含有令牌中不会出现的字符。",
        ),
        Text("Set it to a token of your account, or unset it.", "请设为你账户的令牌，或取消设置。"),
    )


def no_such_file(label: str, file: str, names: list[str]) -> AppError:
    """The error for a file that is not in `label`, with the names that are nearest to it."""
    models = [name for name in names if name.endswith((".gguf", ".safetensors"))] or names
    lowered = {name.lower(): name for name in models[:1000]}
    near = difflib.get_close_matches(file.lower()[:200], lowered, NEAR_NAMES, cutoff=0.4)
    listed = ", ".join(shown(lowered[name]) for name in near) or ", ".join(
        shown(name) for name in models[:NEAR_NAMES]
    )
    step = Text(
        f"Near to it: {listed}." if listed else "Check the name of the file.",
        f"相近的有：{listed}。" if listed else "请检查文件名。",
    )
    return AppError(
        Text(f"{label} has no file {shown(file)}.", f"{label} 中没有文件 {shown(file)}。"), step
    )
