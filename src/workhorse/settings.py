"""What the user declares of a service in a TOML file: address, limits, templates, the guard."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from workhorse.codec import mistake_in_words
from workhorse.config import HOST, PORT
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text, same
from workhorse.units import MIB

LARGEST_BYTES = 4 * MIB


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens."""

    host: str = HOST
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = PORT  # 0: a free one
    certificate: str | None = None  # PEM files for TLS, by their whole path once read; both or none
    private_key: str | None = None
    names: tuple[str, ...] = ()  # host names that clients know it by, such as behind a proxy


Count = Annotated[int, msgspec.Meta(ge=1)]
CardList = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]


class LimitsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one client may take of the gateway."""

    body_mib: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    body_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 120.0  # for a body to arrive
    idle_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 75.0  # before a request's header
    stalled_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 30.0  # an answer is not read
    connections: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may wait for a free slot of a model."""

    length: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 128  # requests; one key's: half of it
    longest_wait_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 600.0  # by the expectation


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
    mmproj: str | None = None  # the projector's file, or none; left out: the one beside the model
    # The cards to use: so many, all, or a list of their numbers; left out: we decide.
    gpus: Count | Literal["all"] | Annotated[CardList, msgspec.Meta(min_length=1)] | None = None
    engines: Count | None = None  # that serve it together
    split: Literal["one", "replicas", "layer", "tensor"] | None = None  # over the cards


class SupervisionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long things may take before the service acts."""

    drain_s: Seconds = 30.0  # so long running answers may end when the service stops
    reload_wait_s: Seconds = 600.0  # and so long when a reload has replaced their engine
    # An engine that neither computes nor reads so long while requests wait is started again.
    hung_after_s: Annotated[float, msgspec.Meta(ge=10, le=86400)] = 300.0


Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class GuardSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How closely the running service is watched, from where on it is an alarm, who is told."""

    on: bool = True
    period_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 5.0  # between two readings
    decode_share: Share = 0.7  # of the expected speed; below it decode has collapsed
    vram_share: Share = 0.9
    disk_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 * 10**9
    raise_after: Count = 6  # bad readings …
    of_latest: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8  # … of so many
    clear_after: Count = 12  # good ones in a row
    repeat_s: Seconds = 600.0  # one alarm is told at most once in this time
    # Each alarm is posted there as JSON; nothing is sent anywhere without it.
    webhook: Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/]")] | None = None


class MessageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message that a template begins with, after its system prompt."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


class TemplateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A beginning that many prompts share: prefilled when idle, kept on disk.

    The system prompt, then the document, then the messages; or, for completions, the prefix.
    Files are found from the settings file's folder on.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    model: str | None = None  # as clients name it; left out: every model
    system: str | None = None
    system_file: str | None = None
    document_file: str | None = None
    messages: Annotated[tuple[MessageSettings, ...], msgspec.Meta(max_length=64)] = ()
    prefix: str | None = None
    prefix_file: str | None = None
    keep: bool = True  # on disk, for the next start


class PrefixCacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What prepared templates may take of the disk."""

    disk_gib: Annotated[float, msgspec.Meta(ge=0, le=10000)] = 8.0


class BatchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What OpenAI's files and batches may take of the disk and of the service."""

    upload_mib: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 200  # OpenAI's (2026-11)
    upload_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 3600.0  # for a file to arrive
    key_gib: Annotated[float, msgspec.Meta(gt=0, le=100_000)] = 4.0  # of one key's files
    total_gib: Annotated[float, msgspec.Meta(gt=0, le=100_000)] = 16.0
    keep_days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0  # OpenAI's (2026-11)
    requests: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 50_000  # OpenAI's (2026-11)
    unfinished: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 32  # batches of one key
    yield_to_chat: bool = True  # keep slots free while people chat


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; everything in it may be left out."""

    serve: ServeSettings = ServeSettings()
    limits: LimitsSettings = LimitsSettings()
    queue: QueueSettings = QueueSettings()
    model: tuple[ModelSettings, ...] = ()
    supervision: SupervisionSettings = SupervisionSettings()
    template: Annotated[tuple[TemplateSettings, ...], msgspec.Meta(max_length=32)] = ()
    prefix_cache: PrefixCacheSettings = PrefixCacheSettings()
    batch: BatchSettings = BatchSettings()
    guard: GuardSettings = GuardSettings()


def read_settings(path: Path) -> Settings:
    """The settings in a file; AppError that names the file, the place and what is wrong there."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise _unusable(path, same(f"> {LARGEST_BYTES} B"))
        document = path.read_bytes()
    except OSError as error:
        check = Text("Check the path.", "请检查路径。")
        raise _unusable(path, same(error.strerror or str(error)), check) from error
    try:
        settings = msgspec.toml.decode(document, type=Settings)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(path, mistake_in_words(str(error))) from error
    folder, serve = path.absolute().parent, settings.serve
    # A service is started in another folder than the one in which its settings were written.
    serve = msgspec.structs.replace(
        serve,
        certificate=serve.certificate and str(folder / serve.certificate),
        private_key=serve.private_key and str(folder / serve.private_key),
    )
    return msgspec.structs.replace(settings, serve=serve)


def _unusable(path: Path, why: Text, next_step: Text | None = None) -> AppError:
    return AppError(
        Text(
            f"The settings in {path} cannot be used: {why.en}.",
            f"无法使用配置文件 {path}：{why.zh}。",
        ),
        next_step
        or Text(
            "Mend the file; docs/settings.md has every setting.",
            "请修改该文件；docs/settings.zh.md 列出了所有配置项。",
        ),
        exit_code=EXIT_USAGE,
    )
