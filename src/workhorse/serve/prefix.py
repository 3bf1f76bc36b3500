"""Finds clients that defeat the engine's prompt cache by what changes near a prompt's start. Pure.

An engine reuses a prompt up to its first token that differs. A time stamp in a system prompt
makes every request read the whole of it again. What is kept of a prompt is one number for each of
its first words, made with Python's own keyed hash, which says nothing of the words; of what
changes, only its kind is told.
"""

import re
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from workhorse.records import Finding
from workhorse.text import Text

LOOK_BYTES = 1536  # of a prompt's JSON: some 300 words, hashed in about 40 µs
MOST_KEYS = 256  # about 10 KB each
PROMPTS_A_KEY = 4  # one key may serve several programs at a time
SPAN_WORDS = 8  # `30 November 2026 at 12:03:44 UTC`
EQUAL_WORDS = 24  # after what changed: fewer are not worth a finding
TIMES = 3  # seen so often at one place before it is told
CLEAN_TIMES = 20  # requests of the key without it, after which it is over
REUSED_SHARE = 0.5  # a request that reused so much of its prompt lost little

# Ends of words beside white space: JSON's marks, and the first bytes of Chinese punctuation.
_BREAKS = bytes.maketrans(b'"\\{}[](),;<>\xef\xe3', b" " * 14)

_KINDS: tuple[tuple[re.Pattern[bytes], Text], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (rb"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", Text("a UUID", "UUID")),
        (rb"\b[0-2]?\d:[0-5]\d", Text("a time", "时间")),
        (
            rb"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|"
            rb"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b|"
            rb"\b(mon|tues|wednes|thurs|fri|satur|sun)day\b|\xe5\xb9\xb4|\xe6\x97\xa5",
            Text("a date", "日期"),
        ),
        (rb"\b1[5-9]\d{8}(\d{3})?\b", Text("a Unix time", "Unix 时间戳")),
        (rb"(?=\w*\d)(?=\w*[a-z])[\w-]{12,}", Text("a random id", "随机标识")),
        (rb"\d", Text("a number", "数字")),
    )
)
_DATE, _NUMBER = _KINDS[2][0], _KINDS[-1][0]
_WORDS = Text("some words", "若干字词")


@dataclass(frozen=True, slots=True)
class Spot:
    """Where the prompts of one key part, and what stands there in the two."""

    key: str
    word: int  # counted from the prompt's start
    kinds: tuple[Text, Text]
    times: int
    prompt_tokens: int | None  # of the latest, as the engine counted
    cached_tokens: int | None


@dataclass(slots=True)
class _Watched:
    prompts: deque[bytes] = field(default_factory=lambda: deque(maxlen=PROMPTS_A_KEY))
    spot: int | None = None
    kinds: deque[Text] = field(default_factory=lambda: deque(maxlen=2))
    times: int = 0
    clean: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def told(self) -> int | None:
        """The place that is told; None: nothing is."""
        return self.spot if self.times >= TIMES else None


class PrefixWatch:
    """Sees each prompt once, after its answer; `findings()` says who defeats the cache, and how."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, str], _Watched] = OrderedDict()

    def saw(
        self,
        key: str,
        model: str,
        prompt: bytes,
        prompt_tokens: int | None,
        cached_tokens: int | None,
    ) -> bool:
        """One request that was answered: its key's name, its prompt as JSON, the engine's counts.

        `""` is the name where there are no keys. True when `spots` says something else now.
        """
        watched = self._keys.get((key, model))
        if watched is None:
            watched = self._keys[key, model] = _Watched()
            if len(self._keys) > MOST_KEYS:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end((key, model))
        told = watched.told
        words = prompt[:LOOK_BYTES].translate(_BREAKS).split()
        numbers = array("q", map(hash, words)).tobytes()
        if numbers in watched.prompts:
            watched.clean += 1
        elif (found := _changed(watched.prompts, numbers)) is None or _reused(
            prompt_tokens, cached_tokens
        ):
            watched.clean += 1
            watched.prompts.append(numbers)
        else:
            (old, at, span), watched.clean = found, 0
            watched.prompts.remove(old)
            watched.prompts.append(numbers)
            if at != watched.spot:
                watched.spot, watched.times = at, 0
                watched.kinds.clear()
            watched.times += 1
            watched.kinds.append(_kind(words, at, span))
            watched.prompt_tokens, watched.cached_tokens = prompt_tokens, cached_tokens
        if watched.clean >= CLEAN_TIMES:
            watched.spot, watched.times = None, 0
        return watched.told != told

    def spots(self) -> tuple[Spot, ...]:
        """Where caches are defeated now."""
        return tuple(
            Spot(
                key,
                one.spot,
                (one.kinds[0], one.kinds[-1]),
                one.times,
                one.prompt_tokens,
                one.cached_tokens,
            )
            for (key, _), one in self._keys.items()
            if one.spot is not None and one.told is not None
        )

    def findings(self) -> tuple[Finding, ...]:
        """The same in words."""
        return tuple(_finding(spot) for spot in self.spots())


def _reused(prompt_tokens: int | None, cached_tokens: int | None) -> bool:
    if prompt_tokens is None or cached_tokens is None:
        return False
    return cached_tokens >= REUSED_SHARE * prompt_tokens


def _changed(prompts: deque[bytes], new: bytes) -> tuple[bytes, int, int] | None:
    """The prompt that `new` equals but for a few words, the first of them and their number."""
    for old in reversed(prompts):
        at = _parting(old, new)
        for span in range(1, SPAN_WORDS + 1):
            start = (at + span) * 8
            end = start + EQUAL_WORDS * 8
            if end <= min(len(old), len(new)) and old[start:end] == new[start:end]:
                return old, at, span
    return None


def _parting(old: bytes, new: bytes) -> int:
    """The first word in which they differ, found in steps that halve."""
    low, high = 0, min(len(old), len(new)) // 8
    while low < high:
        middle = (low + high + 1) // 2
        if old[low * 8 : middle * 8] == new[low * 8 : middle * 8]:
            low = middle
        else:
            high = middle - 1
    return low


def _kind(words: list[bytes], at: int, span: int) -> Text:
    changed = b" ".join(words[at : at + span])
    pattern, name = next((kind for kind in _KINDS if kind[0].search(changed)), (None, _WORDS))
    if pattern is _NUMBER and _DATE.search(b" ".join(words[max(0, at - 2) : at + span + 2])):
        return _KINDS[2][1]  # of `30 November` the month stays for weeks
    return name


def _finding(spot: Spot) -> Finding:
    old, new = spot.kinds
    who = Text(f"The key {spot.key}", f"密钥 {spot.key}")
    if not spot.key:
        who = Text("A client", "某客户端")
    place = spot.word + 1
    seen = Text(
        f"{who.en} sends prompts that differ in word {place} and go on alike: "
        f"{new.en} stands there, another time {old.en}.",
        f"{who.zh} 发送的提示词在第 {place} 个词处不同，其后相同："
        f"该处是{new.zh}，另一次是{old.zh}。",
    )
    evidence = [f"{spot.times} times at word {place}"]
    if spot.prompt_tokens is not None and spot.cached_tokens is not None:
        evidence.append(f"{spot.cached_tokens} of {spot.prompt_tokens} prompt tokens were reused")
    return Finding(
        code="prefix.changes-near-start",
        level="warning",
        seen=seen,
        why=Text(
            "The engine reuses a prompt up to the first token that differs: all that follows is "
            "computed again for each request.",
            "推理引擎只能复用到第一个不同词元为止的部分，其后的内容每次请求都要重新计算。",
        ),
        remedy=Text(
            "Put what changes at the end of the prompt, into the last user message, and keep the "
            "system prompt the same for every request.",
            "请把变化的内容移到提示词末尾（最后一条用户消息），系统提示词保持不变。",
        ),
        source="llama.cpp tools/server/server-context.cpp, get_common_prefix (0c1e570, 2026-10)",
        evidence=tuple(evidence),
        sure="certain" if new != _WORDS else "likely",
    )
