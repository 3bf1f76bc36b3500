"""What every engine adapter is asked for and answers with. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# How the gateway asks an engine for an answer. `progress`: always a stream with progress events,
# because the engine notices a client that left only between two of them. `as asked`: what the
# client sent; the engine itself notices, on every route, that the client is gone.
Asking = Literal["progress", "as asked"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What an engine said that it did, from its log; None: it does not say."""

    device: Literal["cpu", "gpu"] | None = None
    dtype: str | None = None  # float16 …
    slots: int | None = None  # requests at a time
    context_tokens: int | None = None  # of one request
    kv_tokens: int | None = None  # room of the whole KV cache
    attention: str | None = None  # the backend's name
    version: str | None = None
    fell_back: tuple[str, ...] = ()  # its own words where it took something else than was asked

    @property
    def says_nothing(self) -> bool:
        """True for a log that tells nothing of a load."""
        return self == Observed(version=self.version)


@dataclass(frozen=True, slots=True)
class Question:
    """One request to an engine."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where an engine's metrics are, and what its samples are called; None: it has no such one.

    `running` and `waiting` are requests now, `kv_share` the share of the KV in use (0 to 1), the
    tokens counters since the start.
    """

    path: str
    running: str | None
    waiting: str | None
    kv_share: str | None
    prompt_tokens: str | None
    generated_tokens: str | None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine's metrics say; None: it does not say."""

    running: int | None
    waiting: int | None
    kv_share: float | None
    prompt_tokens: int | None
    generated_tokens: int | None


@dataclass(frozen=True, slots=True)
class Skills:
    """What an engine can do, whatever the card.

    `formats` of model files, `weights` kinds that it computes with, `kv` types of its cache.
    """

    formats: tuple[Literal["gguf", "safetensors"], ...]
    weights: tuple[str, ...]
    kv: tuple[str, ...]
    main_memory: bool  # computes on a CPU
    beside_card: bool  # a model larger than the card: the rest in main memory
    cards: bool  # several cards for one model
    many_users: bool  # one pool of KV in pages, batches made anew at each step
    prefix_cache: bool
    embeddings: bool
    reranking: bool = False


def samples(page: str) -> Mapping[str, float]:
    """The samples of a page of metrics by name; those of one name with other labels add up."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        value = rest.rpartition("}")[2].split() if "{" in line else rest.split()
        try:
            found[name] = found.get(name, 0.0) + float(value[0])
        except (IndexError, ValueError):
            continue
    return found


def read_metrics(page: str, names: Metrics) -> Load:
    """What a page of metrics says, in the words of every engine."""
    found = samples(page)

    def count(name: str | None) -> int | None:
        return None if name is None or name not in found else round(found[name])

    return Load(
        count(names.running),
        count(names.waiting),
        found.get(names.kv_share or ""),
        count(names.prompt_tokens),
        count(names.generated_tokens),
    )
