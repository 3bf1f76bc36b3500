"""What the user declares of a service in a TOML file: address, limits, templates, the guard."""

from pathlib import Path

import msgspec

from workhorse.config import HOST, PORT
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text
from workhorse.units import MIB

LARGEST_BYTES = 4 * MIB


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens."""

    host: str = HOST
    port: int = PORT
    certificate: str | None = None  # PEM files; both or none
    private_key: str | None = None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; everything in it may be left out."""

    serve: ServeSettings = ServeSettings()


def read_settings(path: Path) -> Settings:
    """The settings in a file; AppError that names the file, the place and what is wrong there."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise _unreadable(path, f"larger than {LARGEST_BYTES} bytes")
        document = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    try:
        return msgspec.toml.decode(document, type=Settings)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> AppError:
    return AppError(
        Text(f"The settings in {path} cannot be used: {why}.", f"无法使用配置文件 {path}：{why}。"),
        Text(
            "Mend the file; docs/settings.md has every setting.",
            "请修改该文件；docs/settings.md 列出了所有配置项。",
        ),
        exit_code=EXIT_USAGE,
    )
