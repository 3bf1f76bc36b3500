"""Reads what the user calls a model: a path, a repository on a hub, or an address."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from workhorse.errors import AppError
from workhorse.models.refusals import shown
from workhorse.text import Text

HubName = Literal["hf", "ms"]

# huggingface_hub and modelscope read these variables too (their constants.py, 2026-11).
HF_DEFAULT = "https://huggingface.co"
MS_DEFAULT = "https://www.modelscope.cn"
HOSTS: dict[HubName, tuple[str, ...]] = {
    "hf": ("huggingface.co", "hf.co", "www.huggingface.co"),
    "ms": ("modelscope.cn", "www.modelscope.cn"),
}
MIRRORS: dict[HubName, tuple[str, ...]] = {"hf": ("hf-mirror.com",), "ms": ()}
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_REFERENCE = re.compile(
    rf"(?:(?P<hub>hf|ms):)?(?P<repo>{_REPOSITORY.pattern})(?:@(?P<rev>[\w./-]{{1,96}}))?"
    r"(?::(?P<file>.{1,512}))?",
    re.ASCII,
)
_FILE_ENDINGS = (".gguf", ".safetensors", ".json")


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A file or a directory of this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on a hub; `wanted` is one of its files, or a quantisation such as `Q4_K_M`."""

    hub: HubName
    endpoint: str
    repo: str
    revision: str
    wanted: str | None = None

    @property
    def label(self) -> str:
        """How the user can name it again, without the file."""
        usual = self.revision == ("main" if self.hub == "hf" else "master")
        return f"{self.hub}:{self.repo}" + ("" if usual else f"@{self.revision}")

    @property
    def page(self) -> str:
        """Its page for people."""
        return f"{self.endpoint}/{'' if self.hub == 'hf' else 'models/'}{self.repo}"


@dataclass(frozen=True, slots=True)
class UrlSource:
    """One file at an address."""

    url: str


Source = LocalSource | HubSource | UrlSource


def source_of(reference: str, environment: Mapping[str, str]) -> Source:
    """What `reference` names.

    A path that exists comes first; `hf:owner/name[@revision][:file]` and `ms:…` name a hub,
    `owner/name` alone is Hugging Face; the address of a page of a hub means its repository.
    `environment` has HF_ENDPOINT, MODELSCOPE_ENDPOINT or MODELSCOPE_DOMAIN. AppError when it is
    none of these.
    """
    if re.match(r"https?://", reference, re.IGNORECASE):
        return _of_address(reference, environment)
    if reference.startswith("file://"):
        return LocalSource(Path(unquote(urlsplit(reference).path)))
    if reference.startswith(("hf:", "ms:")):
        match = _REFERENCE.fullmatch(reference)
        if match is None or _leaves_repository(match["file"]):
            raise _no_reference(reference)
        return _on_hub("ms" if match["hub"] == "ms" else "hf", match, environment)
    path = Path(reference).expanduser()
    if not _there(path) and not reference.startswith((".", "/", "~")):
        match = _REFERENCE.fullmatch(reference)
        if match is not None and not match["repo"].lower().endswith(_FILE_ENDINGS):
            if _leaves_repository(match["file"]):
                raise _no_reference(reference)
            return _on_hub("hf", match, environment)
    return LocalSource(path)


def _on_hub(hub: HubName, match: re.Match[str], environment: Mapping[str, str]) -> HubSource:
    revision = match["rev"] or ("main" if hub == "hf" else "master")
    return HubSource(hub, endpoint(hub, environment), match["repo"], revision, match["file"])


def endpoint(hub: HubName, environment: Mapping[str, str]) -> str:
    """The address of a hub or of the mirror that stands in for it."""
    if hub == "hf":
        found = environment.get("HF_ENDPOINT") or HF_DEFAULT
    else:
        found = environment.get("MODELSCOPE_ENDPOINT") or environment.get("MODELSCOPE_DOMAIN") or ""
        found = found or MS_DEFAULT
    if "://" not in found:
        found = f"https://{found}"
    return found.rstrip("/")


def _of_address(url: str, environment: Mapping[str, str]) -> Source:
    """A page of a hub means its repository: people copy addresses from the browser."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _no_reference(url) from error
    steps = [unquote(step) for step in parts.path.split("/") if step]
    place = f"{parts.scheme.lower()}://{parts.netloc}"
    hub = _hub_at(place, environment)
    if hub == "ms":
        hub, steps = ("ms", steps[1:]) if steps[:1] == ["models"] else (None, steps)
    if hub is None or not _REPOSITORY.fullmatch("/".join(steps[:2])):
        return UrlSource(url)
    if parts.netloc in HOSTS[hub]:
        place = endpoint(hub, environment)
    revision, file = "main" if hub == "hf" else "master", None
    match steps[2:]:
        case [] | ["summary"] | ["files"] | ["tree"]:
            pass
        case ["tree", revision, *_]:
            pass
        case ["blob" | "resolve" | "raw", revision, _, *_]:
            file = "/".join(steps[4:])
        case ["file", "view", revision, _, *_]:
            file = "/".join(steps[5:])
        case _:
            return UrlSource(url)
    if _leaves_repository(file):
        raise _no_reference(url)
    return HubSource(hub, place, "/".join(steps[:2]), revision, file)


def _hub_at(place: str, environment: Mapping[str, str]) -> HubName | None:
    host = urlsplit(place).netloc
    hubs: tuple[HubName, HubName] = ("hf", "ms")
    for hub in hubs:
        if host in (*HOSTS[hub], *MIRRORS[hub]) or place == endpoint(hub, environment):
            return hub
    return None


def _leaves_repository(file: str | None) -> bool:
    return file is not None and (
        ".." in file.split("/") or file.startswith("/") or not file.isprintable()
    )


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _no_reference(reference: str) -> AppError:
    return AppError(
        Text(
            f"“{shown(reference[:200])}” names no model.",
            f"“{shown(reference[:200])}”不是有效的模型名称。",
        ),
        Text(
            "Write hf:owner/name, hf:owner/name:file.gguf, ms:owner/name, an address, or a path.",
            "请写成 hf:所有者/名称、hf:所有者/名称:文件.gguf、ms:所有者/名称、网址或本地路径。",
        ),
    )
