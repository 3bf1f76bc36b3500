"""What the engine is asked, given what a client asked. Pure.

llama-server notices that a client left only between two events of a stream; on one that is not
streamed, or that is silent in prefill, it computes on for nobody (measured 2026-11). So every
generation is asked for as a stream with progress events, whatever the client asked for.

Values are kept as the bytes that the client sent; only the keys named here change.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

# llama.cpp `common/common.h`, `sse_ping_interval`, commit 0c1e570, read November 2026.
PING_DEFAULT_S = 30.0

# Chat, Anthropic's and OpenAI's newer form of it, completions, embeddings, rerank.
_PROMPTS = ("system", "instructions", "messages", "prompt", "input", "query", "documents")
# An array that does not begin with a number.
_SEVERAL = re.compile(rb'\s*\[\s*["\[{]')
MOST_COUNTED_BYTES = 1024 * 1024
MOST_ANSWERS = 1024  # more slots than any engine here has
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")

Fields = dict[str, msgspec.Raw]
# In which form a route is asked.
Kind = Literal["chat", "text", "messages", "responses"]
Answer = Literal["unchanged", "with progress", "without progress", "assembled"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for the engine, and what to make of its answer.

    `unchanged` is a request that we did not make a stream of; every other one is one. `ping_s`
    is how long a client's stream may be silent while progress is kept from it; None: for ever,
    which is what the client asked for. `prompt` is the JSON of what the engine has to read:
    what the request will cost is estimated by it.
    """

    body: bytes
    answer: Answer
    ping_s: float | None = None
    model: str | None = None  # as the client called it
    prompt: bytes = b""
    limit_tokens: int | None = None  # of the answer; None: the client set none
    hide_usage: bool = False  # the figures at the end of the stream are for us alone
    path: str | None = None  # where the engine is asked; None: where the client asked
    answers: int = 1  # each of which takes a slot of the engine


def ask_engine(body: bytes, kind: Kind) -> Ask:
    """The request that the engine gets for a client's `body`.

    A body that is not a JSON object, or that does not say clearly whether it wants a stream,
    goes on as it is: the engine refuses it in its own words.
    """
    try:
        fields = msgspec.json.decode(body, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return Ask(body, "unchanged")
    model, prompt, limit_tokens = _text(fields.get("model")), _prompt(fields), _limit(fields)
    answers = _answers(fields, kind)
    stream = bytes(fields.get("stream", b"null"))
    if stream == b"true":
        wants_progress = bytes(fields.get("return_progress", b"null")) == b"true"
        answer: Answer = "with progress" if wants_progress else "without progress"
    elif stream in (b"false", b"null") and not stream_differs(fields, kind):
        answer = "assembled"
        fields["stream"] = msgspec.Raw(b"true")
        if kind != "responses":  # they always tell
            fields["stream_options"] = _with_usage(fields.get("stream_options"))
        if kind == "chat" and not _is_set(fields, "echo"):
            # An answer that continues the client's own words begins with them; its stream
            # does so only on this wish.
            fields["echo"] = msgspec.Raw(b"true")
    else:
        return Ask(body, "unchanged", None, model, prompt, limit_tokens, answers=answers)
    fields["return_progress"] = msgspec.Raw(b"true")
    ping_s = _ping_s(fields.get("sse_ping_interval"))
    whole = msgspec.json.encode(fields)
    return Ask(whole, answer, ping_s, model, prompt, limit_tokens, answers=answers)


def ask_as_asked(ask: Ask, body: bytes, kind: Kind, model_name: str) -> Ask:
    """The request for an engine that stops by itself when the client leaves: as the client sent it.

    But for the model's name, which such an engine compares with its own, and the figures at the
    end of a stream, which it sends only on demand and which we count. What was translated from
    another form (`ask`, of a client's `body`) stays translated.
    """
    translated = kind == "messages"
    try:
        fields = msgspec.json.decode(ask.body if translated else body, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return replace(ask, body=body, answer="unchanged")
    fields["model"] = msgspec.Raw(msgspec.json.encode(model_name))
    for ours in ("return_progress", "sse_ping_interval"):
        fields.pop(ours, None)
    if translated:
        return replace(ask, body=msgspec.json.encode(fields))
    if bytes(fields.get("stream", b"null")) != b"true":
        return replace(ask, body=msgspec.json.encode(fields), answer="unchanged", ping_s=None)
    hide_usage = kind in ("chat", "text") and not _wants_usage(fields.get("stream_options"))
    if hide_usage:
        fields["stream_options"] = _with_usage(fields.get("stream_options"))
    whole = msgspec.json.encode(fields)
    return replace(ask, body=whole, answer="without progress", hide_usage=hide_usage)


def _wants_usage(options: msgspec.Raw | None) -> bool:
    try:
        fields = msgspec.json.decode(options or b"{}", type=Fields | None) or {}
    except msgspec.ValidationError:  # not an object: the engine says what it thinks of it
        return True
    return bytes(fields.get("include_usage", b"null")) == b"true"


def ask_unchanged(body: bytes) -> Ask:
    """A request that goes to the engine as it is, with the model and the prompt that it names."""
    try:
        fields = msgspec.json.decode(body, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return Ask(body, "unchanged")
    model = _text(fields.get("model"))
    # One task of the engine for each text to embed and each document to rank.
    texts = max(_items(fields.get(name)) for name in ("input", "content", "documents"))
    answers = min(MOST_ANSWERS, texts)
    return Ask(body, "unchanged", None, model, _prompt(fields), _limit(fields), answers=answers)


def _answers(fields: Fields, kind: Kind) -> int:
    """How many the engine computes at once: of several prompts, several of each."""
    if kind not in ("chat", "text"):
        return 1
    wanted = 1
    for name in ("n", "n_cmpl"):
        with suppress(msgspec.ValidationError):  # the engine says what it thinks of it
            wanted = max(
                wanted, msgspec.json.decode(fields.get(name, b"null"), type=int | None) or 1
            )
    return min(MOST_ANSWERS, wanted * (_items(fields.get("prompt")) if kind == "text" else 1))


def _items(value: msgspec.Raw | None) -> int:
    """How many prompts there are; numbers at the top are the tokens of a single one."""
    told = bytes(value or b"")
    if not _SEVERAL.match(told):
        return 1
    if len(told) > MOST_COUNTED_BYTES:  # a list in memory is many times as large
        return told.count(b'",') + 1
    items = msgspec.json.decode(told, type=list[msgspec.Raw])
    numbers = any(bytes(item)[:1] not in b'"[{' for item in items)
    return 1 if numbers else len(items)


def _prompt(fields: Fields) -> bytes:
    """What the engine has to read, in the words of any of the routes."""
    return b"".join(bytes(fields[name]) for name in _PROMPTS if name in fields)


def _limit(fields: Fields) -> int | None:
    """How long the answer may get."""
    for name in _LIMITS:
        if name in fields:
            try:
                limit = msgspec.json.decode(fields[name], type=int | None)
            except msgspec.ValidationError:  # the engine says what it thinks of it
                continue
            if limit is not None and limit >= 0:
                return limit
    return None


def _text(value: msgspec.Raw | None) -> str | None:
    try:
        return msgspec.json.decode(value or b"null", type=str | None)
    except msgspec.ValidationError:  # a number: the engine says what it thinks of it
        return None


def stream_differs(fields: Fields, kind: Kind) -> bool:
    """True when the engine's stream does not hold all that its whole answer would.

    - Log probabilities: a chat's stream drops those of tokens without text of their own (the
      end of the answer, a stop string that was held back); with tools it is refused. A plain
      completion's has them all, but not the cut that a stop string makes.
    - `verbose`: the raw text before parsing is only in the whole answer.
    - `n_indent`: cuts a line that a stream has already sent.
    - `reasoning_format` deepseek-legacy: means something else in a stream.

    Such a request goes on as it is. Its price: when the client leaves, the engine stops only
    after a second without an answer to anybody, or at the end.
    Source: llama.cpp `tools/server/server-{task,context,schema}.cpp`, commit 0c1e570.
    """
    if _is_set(fields, "logprobs") or _is_set(fields, "n_probs"):
        return kind == "chat" or _is_set(fields, "stop")
    legacy = bytes(fields.get("reasoning_format", b"")) == b'"deepseek-legacy"'
    return legacy or _is_set(fields, "verbose") or _is_set(fields, "n_indent")


def _is_set(fields: Fields, name: str) -> bool:
    return bytes(fields.get(name, b"null")) not in (b"null", b"false", b"0", b"[]", b'""')


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    """The stream options with the usage figures asked for."""
    try:
        fields = msgspec.json.decode(options or b"{}", type=Fields)
    except msgspec.ValidationError:  # not an object: the engine ignores it
        fields = {}
    fields["include_usage"] = msgspec.Raw(b"true")
    return msgspec.Raw(msgspec.json.encode(fields))


def _ping_s(interval: msgspec.Raw | None) -> float | None:
    """The silence that the client bears, in seconds; a negative interval means no pings."""
    try:
        seconds = msgspec.json.decode(interval or b"null", type=float | None)
    except msgspec.ValidationError:  # not a number: the engine refuses it
        return None
    if seconds is None:
        return PING_DEFAULT_S
    return seconds if seconds > 0 else None
