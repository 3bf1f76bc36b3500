"""The wheel of the workhorse that runs, made of its installed files: no source tree is needed."""

import base64
import hashlib
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution
from importlib.resources import as_file, files
from pathlib import Path

from workhorse import __version__
from workhorse.errors import AppError
from workhorse.text import Text

# The same files make the same wheel, whenever it is made (zip knows no earlier time).
_TIME = (1980, 1, 1, 0, 0, 0)
_LEFT_OUT = {"__pycache__"}


def write_own_wheel(folder: Path) -> Path:
    """Write the wheel into `folder`; returns its path. Raises AppError, OSError."""
    path = folder / f"workhorse-{__version__}-py3-none-any.whl"
    info = f"workhorse-{__version__}.dist-info"
    # An earlier bundle may hold the same file under a second name.
    path.unlink(missing_ok=True)
    record: list[str] = []
    with (
        as_file(files("workhorse")) as package,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel,
    ):

        def add(name: str, content: bytes) -> None:
            wheel.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}")

        for file in sorted(package.rglob("*")):
            relative = file.relative_to(package)
            if file.is_file() and not _LEFT_OUT & set(relative.parts):
                add(f"workhorse/{relative.as_posix()}", file.read_bytes())
        described = _metadata("METADATA")
        add(f"{info}/METADATA", described)
        for name in message_from_bytes(described).get_all("License-File", []):
            if text := distribution("workhorse").read_text(f"licenses/{name}"):
                add(f"{info}/licenses/{name}", text.encode())
        add(f"{info}/entry_points.txt", _metadata("entry_points.txt"))
        tags = (
            "Wheel-Version: 1.0\nGenerator: workhorse\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        add(f"{info}/WHEEL", tags.encode())
        record.append(f"{info}/RECORD,,")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", _TIME), "\n".join(record) + "\n")
    return path


def _metadata(name: str) -> bytes:
    """A file of the installed package's description."""
    text = distribution("workhorse").read_text(name)
    if text is None:
        raise AppError(
            Text(
                f"workhorse is not installed as a package: it has no {name}.",
                f"workhorse 未以软件包形式安装：缺少 {name}。",
            ),
            Text("Install it: sh scripts/setup run", "请安装：sh scripts/setup run"),
        )
    return text.encode()
