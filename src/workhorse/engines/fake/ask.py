"""What a client asks of the fake engine, read as llama-server reads it. Pure."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from workhorse.engines.fake.tokens import to_tokens
from workhorse.engines.fake.wire import Json, error

Kind = Literal["native", "text", "chat"]


class Refused(Exception):
    """A request that gets an error answer; `body` is the answer."""

    def __init__(self, message: str, kind: str, **more: int) -> None:
        super().__init__(message)
        self.body = error(message, kind, **more)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its prompts (each gets `choices` answers) and what to do with them."""

    kind: Kind
    prompts: tuple[tuple[int, ...], ...]
    choices: int
    limit_tokens: int | None  # None: until the answer ends by itself or the context is full
    ignore_eos: bool
    stops: tuple[str, ...]
    stream: bool
    progress: bool
    include_usage: bool
    logprobs: bool
    return_tokens: bool
    seed: int


def read_json(data: bytes) -> Json:
    """The request's JSON object; `Refused` when it is none."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as cause:
        # llama-server answers 500 to broken JSON, so a gateway must not see a 400 here.
        raise Refused(f"parse error: {cause}", "server_error") from cause
    if not isinstance(body, dict):
        raise Refused("the request is not a JSON object", "invalid_request_error")
    return body


def read_ask(kind: Kind, body: Json) -> Ask:
    """The request in `body`; `Refused` as llama-server refuses it."""
    prompts = [_chat_prompt(body)] if kind == "chat" else read_prompts(body.get("prompt"))
    options = body.get("stream_options")
    limit = -1
    for name in ("n_predict", "max_tokens", "max_completion_tokens"):
        limit = _number(body, name, limit)
    return Ask(
        kind=kind,
        prompts=tuple(tuple(prompt) for prompt in prompts),
        choices=max(1, _number(body, "n", 1)),
        limit_tokens=None if limit < 0 else limit,
        ignore_eos=body.get("ignore_eos") is True,
        stops=_stops(body.get("stop")),
        stream=body.get("stream") is True,
        progress=body.get("return_progress") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        logprobs=bool(body.get("logprobs")),
        return_tokens=body.get("return_tokens") is True,
        seed=_number(body, "seed", 0),
    )


def read_prompts(prompt: Any) -> list[list[int]]:
    """The token lists of a prompt: a text, a token list, a mixed list or a list of those."""
    if prompt is None:
        raise Refused("key 'prompt' not found", "invalid_request_error")
    if isinstance(prompt, str):
        return [to_tokens(prompt)]
    if isinstance(prompt, list) and prompt:
        if any(_is_token(part) for part in prompt):
            return [_mixed(prompt)]
        return [to_tokens(part) if isinstance(part, str) else _mixed(part) for part in prompt]
    raise Refused("unsupported 'prompt'", "invalid_request_error")


def _mixed(parts: Any) -> list[int]:
    if not isinstance(parts, list):
        raise Refused("unsupported 'prompt'", "invalid_request_error")
    tokens: list[int] = []
    for part in parts:
        if _is_token(part):
            tokens.append(part)
        elif isinstance(part, str):
            tokens.extend(to_tokens(part))
        else:
            raise Refused("unsupported 'prompt'", "invalid_request_error")
    return tokens


def _is_token(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def _chat_prompt(body: Json) -> list[int]:
    messages = body.get("messages")
    if messages is None:
        raise Refused("'messages' is required", "invalid_request_error")
    if not isinstance(messages, list):
        raise Refused("Expected 'messages' to be an array", "invalid_request_error")
    text = ""
    for message in messages:
        if not isinstance(message, dict):
            raise Refused("Expected a message to be an object", "invalid_request_error")
        text += f"<|im_start|>{message.get('role')}\n{_content(message.get('content'))}<|im_end|>\n"
    return to_tokens(text + "<|im_start|>assistant\n")


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _stops(stop: Any) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    return tuple(str(word) for word in stop) if isinstance(stop, list) else ()


def _number(body: Json, name: str, otherwise: int) -> int:
    value = body.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = {str: "string", bool: "boolean", list: "array"}.get(type(value), "object")
        raise Refused(
            f"Field '{name}': type must be number, but is {found}", "invalid_request_error"
        )
    return int(value)
