"""Templates: beginnings of prompts that many requests share, declared by the user. Pure.

What is prefilled of a template is only what every request with it begins with for certain: the
tokens that its prompt has in common with itself under very different continuations. A token that
would merge with the first characters of the client's own words is not among them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from workhorse.records import Plan

# What clients' own words may begin with: the tokenizer joins each with what stands before it in
# its own way.
PROBES = ("A", "a", "1", " a", "  a", "\n", "\n\na", "\t", "中", "é", "<", "#", "'s", "user", "🙂")

# A request that reused so much of its template was served by it. Models with a sliding window
# compute the window's edge again: 5 of 1,070 tokens after a restore (tried 2026-11).
HIT_SHARE = 0.9

# How far a template is: `waiting` for idle time, being prefilled, ready in the engine, or refused.
State = Literal["waiting", "prefilling", "ready", "refused"]


@dataclass(frozen=True, slots=True)
class Template:
    """One beginning: the first messages of a chat, or the raw text of a completion."""

    name: str
    model: str | None  # None: every model that is served
    messages: tuple[tuple[str, str], ...]  # role and content; empty: `prefix` counts
    prefix: str  # of plain completions; "": `messages` count
    keep: bool  # its state is saved to disk

    def probes(self) -> tuple[str | list[dict[str, str]], ...]:
        """The prompts whose tokens are compared: texts, or messages to be rendered first."""
        if self.prefix:
            return tuple(self.prefix + probe for probe in PROBES)
        told = [{"role": role, "content": content} for role, content in self.messages]
        return tuple([*told, {"role": "user", "content": probe}] for probe in PROBES)


def shared_tokens(prompts: Sequence[list[int]]) -> tuple[int, ...]:
    """The tokens that all prompts begin with."""
    first, last = min(prompts, default=[]), max(prompts, default=[])
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return tuple(first[:at])
    return tuple(first)


def state_key(setup: str, tokens: Iterable[int]) -> str:
    """The name of the state that an engine of this setup has after these tokens.

    `setup` names everything else that the state depends on: model, build, KV types, context.
    """
    digest = hashlib.blake2b(setup.encode(), digest_size=16)
    digest.update(b"\0" + ",".join(map(str, tokens)).encode())
    return digest.hexdigest()


def setup_of(plan: Plan, model_fingerprint: str) -> str:
    """All that an engine's state depends on beside the tokens, in one line."""
    cells = "one pool" if plan.shared_kv else "a cache each"
    return (
        f"{model_fingerprint} {plan.engine.engine} {plan.engine.kind} {plan.engine.version} "
        f"{plan.kv_type_k}/{plan.kv_type_v} flash attention {plan.flash_attention} "
        f"{plan.slots} x {plan.context_tokens} tokens, {cells}"
    )


def slots_for(requests: Sequence[int], slots: int) -> tuple[int, ...]:
    """Which template each slot holds, by their places: `requests` has how often each was asked for.

    Each gets one, those asked for most first; further slots go where most requests share one.
    """
    if not requests:
        return ()
    given = [0] * len(requests)
    found: list[int] = []
    for _ in range(slots):
        without = [place for place, count in enumerate(given) if not count]
        best = max(
            without or range(len(requests)),
            key=lambda place: ((requests[place] + 1) / (given[place] + 1), -place),
        )
        given[best] += 1
        found.append(best)
    return tuple(found)


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class Matcher:
    """Tells by which template a request's prompt begins."""

    def __init__(self, templates: Iterable[Template]) -> None:
        # The longest first: one template may be the beginning of another.
        self._templates = sorted(
            templates,
            key=lambda one: len(one.prefix) + sum(len(text) for _, text in one.messages),
            reverse=True,
        )
        self._chats = msgspec.json.Decoder(list[_Message])

    def match(self, model: str, prompt: bytes) -> Template | None:
        """The template of a request, given the JSON of its messages or of its prompt."""
        mine = [one for one in self._templates if one.model in (None, model)]
        if not mine:
            return None
        try:
            if prompt[:1] == b'"':
                text = msgspec.json.decode(prompt, type=str)
                return next((t for t in mine if t.prefix and text.startswith(t.prefix)), None)
            told = [(one.role, _text(one.content)) for one in self._chats.decode(prompt)]
            told = [(role, text and without_last_line_end(text)) for role, text in told]
        except msgspec.DecodeError:  # another route's form, or nonsense
            return None
        return next(
            (t for t in mine if t.messages and tuple(told[: len(t.messages)]) == t.messages), None
        )


def without_last_line_end(text: str) -> str:
    """A text without the line ends that editors and multi-line strings put at its end.

    Clients send it with them or without; what is prefilled begins both.
    """
    return text.rstrip("\r\n")


def _text(content: str | list[dict[str, Any]] | None) -> str | None:
    """A message's words; None when it holds anything but text."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") for part in content]
    return "".join(part for part in parts if part) if all(parts) else None


@dataclass(slots=True)
class Tally:
    """What one template has been good for; counts since the service started."""

    name: str
    model: str
    state: State = "waiting"
    tokens: int | None = None  # None: not rendered yet
    progress: float | None = None  # 0 to 1, while it is prefilled
    on_disk: bool = False
    requests: int = 0
    hits: int = 0  # requests that reused it, see HIT_SHARE
    saved_tokens: int = 0
    saved_s: float = 0.0
    prefill_s: float = 0.0  # what its own prefill took, in idle time
    why: str | None = None  # why it is refused
    others: int = 0  # requests of the same model without it, since the last with it

    @property
    def hit_rate(self) -> float | None:
        """Share of its requests that reused it; None: there were none."""
        return self.hits / self.requests if self.requests else None


class Ledger:
    """The templates' tallies, by template and model, and the prefill speed that they rest on."""

    def __init__(self, templates: Iterable[Template]) -> None:
        self._matcher = Matcher(templates)
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._tokens_per_s: dict[str, float] = {}

    def declare(self, templates: Iterable[Template]) -> None:
        """Other templates from now on; the counts of those that stay go on."""
        told = tuple(templates)
        names = {one.name for one in told}
        self._matcher = Matcher(told)
        self._tallies = {key: one for key, one in self._tallies.items() if key[0] in names}

    def of(self, template: Template, model: str) -> Tally:
        """One template's tally with one model."""
        return self._tallies.setdefault(
            (template.name, model), Tally(name=template.name, model=model)
        )

    def tallies(self) -> tuple[Tally, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._tallies.values())

    def others_since(self, template: Template, model: str) -> int:
        """How many requests without it the model has answered since the last one with it."""
        return self.of(template, model).others

    def pushed_back(self, template: Template, model: str) -> None:
        """It has a slot again, as if a request with it had come."""
        self.of(template, model).others = 0

    def prefilled(self, model: str, tokens: int, seconds: float) -> None:
        """The engine computed so many tokens of a prompt in this time."""
        if tokens > 0 and seconds > 0:
            speed = tokens / seconds
            before = self._tokens_per_s.get(model)
            # Load and depth differ from one request to the next: half old, half new.
            self._tokens_per_s[model] = speed if before is None else (before + speed) / 2

    def answered(self, model: str, prompt: bytes, cached_tokens: int | None) -> None:
        """A request was answered; its prompt as JSON, what of it the engine had in its cache."""
        template = self._matcher.match(model, prompt)
        for tally in self._tallies.values():
            tally.others += tally.model == model
        if template is None:
            return
        tally = self.of(template, model)
        tally.others = 0
        tally.requests += 1
        if tally.tokens is None or cached_tokens is None:
            return
        saved = min(cached_tokens, tally.tokens)
        tally.hits += saved >= HIT_SHARE * tally.tokens
        tally.saved_tokens += saved
        tally.saved_s += saved / speed if (speed := self._tokens_per_s.get(model)) else 0.0
