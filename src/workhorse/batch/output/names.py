"""Names of result files that are safe on every system and in no folder but ours; pure."""

import hashlib
import re
import unicodedata

# 255 bytes are the most; `.NAME.part` and a mark of a collision have to fit in.
NAME_BYTES_MAX = 200
FOLDERS_MAX = 60
# Windows' file names, "Naming Files, Paths, and Namespaces" (2026-11); shares are looked at there.
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_RESERVED = re.compile(r"(?:CON|PRN|AUX|NUL|COM[0-9¹²³]|LPT[0-9¹²³])(?:\..*)?", re.IGNORECASE)


class SafeNames:
    """Gives each item's file a path of its own, relative to the folder of the results."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self._files = {_key(name) for name in reserved}
        self._folders: set[str] = set()

    def path_for(self, item_id: str, suffix: str = "") -> str:
        """A path such as `handbook/fans.pdf.md` for `handbook/fans.pdf`.

        No two are the same, small and capital letters alike; none leads out of the folder, none is
        a folder of another one. The same ids in the same order give the same paths.
        """
        *folders, name = safe_parts(item_id)
        folders = [self._free_folder(folders, depth) for depth in range(len(folders))]
        path = "/".join([*folders, _short(name, suffix)])
        number = 1
        while _key(path) in self._files or _key(path) in self._folders:
            number += 1
            path = "/".join([*folders, _short(name, f"~{number}{suffix}")])
        self._files.add(_key(path))
        parts = path.split("/")
        self._folders.update(_key("/".join(parts[:depth])) for depth in range(1, len(parts)))
        return path

    def _free_folder(self, folders: list[str], depth: int) -> str:
        """The folder's name, another one where an item's file has it already."""
        name, number = folders[depth], 1
        while _key("/".join([*folders[:depth], folders[depth]])) in self._files:
            number += 1
            folders[depth] = f"{name}~{number}"
        return folders[depth]


def safe_parts(item_id: str) -> list[str]:
    """The folders and the name in an id, each a safe one; at least a name."""
    normal = unicodedata.normalize("NFC", item_id.encode("utf-8", "replace").decode())
    parts = [part for part in re.split(r"[/\\]", normal) if part not in ("", ".", "..")]
    safe = [_safe(part) for part in parts[-FOLDERS_MAX:]]
    return safe or ["item"]


def _safe(part: str) -> str:
    name = _FORBIDDEN.sub("_", part).strip(" ").rstrip(".")
    # A name that begins with a dot is hidden, and could be one of our marks.
    name = "_" + name[1:] if name.startswith(".") else name
    if not name or _RESERVED.fullmatch(name):
        name = f"_{name}"
    return _short(name, "")


def _short(name: str, suffix: str) -> str:
    """`name` + `suffix` within NAME_BYTES_MAX; a hash stands for what is cut off."""
    if len((name + suffix).encode()) <= NAME_BYTES_MAX:
        return name + suffix
    mark = "~" + hashlib.sha256(name.encode()).hexdigest()[:12]
    room = NAME_BYTES_MAX - len((mark + suffix).encode())
    return name.encode()[:room].decode("utf-8", "ignore") + mark + suffix


def _key(path: str) -> str:
    """What a file system that does not tell capital letters from small ones goes by."""
    return unicodedata.normalize("NFC", path.casefold())
