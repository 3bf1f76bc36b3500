"""What the user declares of a service in a TOML file: address, limits, templates, the guard."""

from pathlib import Path
from typing import Annotated, Literal

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


Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]


class ModelSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"purpose": "for"}
):
    """One model to serve, said as `up` takes it; each `[[model]]` gets an engine of its own."""

    model: str | None = None  # left out: the embedded model
    quant: str | None = None
    engine: str | None = None
    context: Count | None = None  # tokens of one slot
    slots: Count | None = None
    purpose: Literal["chat", "long", "batch"] | None = None
    headroom_percent: Annotated[float, msgspec.Meta(ge=0, le=90)] | None = None


class SupervisionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long things may take before the service acts."""

    drain_s: Seconds = 30.0  # running answers may end so long after SIGTERM or a reload
    hung_after_s: Annotated[float, msgspec.Meta(ge=10, le=86400)] = (
        300.0  # without any sign of life
    )


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; everything in it may be left out."""

    serve: ServeSettings = ServeSettings()
    model: tuple[ModelSettings, ...] = ()
    supervision: SupervisionSettings = SupervisionSettings()


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
