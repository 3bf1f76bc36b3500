"""Anthropic's form of a request in OpenAI's. Pure.

llama-server takes Anthropic's form too, but not the wish for progress in it: asked so, it reads a
long prompt to its end for a client that has left (tried with 0.5.0, 2026-11). So the gateway
translates, as llama-server does it (`server-chat.cpp`, commit 0c1e570, read November 2026), and
whatever it does not know goes on as it is.
"""

import re
from typing import Any

import msgspec

from workhorse.serve.figures import Json

ANSWER_TOKENS = 4096  # llama-server's, where Anthropic's own server would refuse
# Claude Code begins with a stamp that changes with each request: nothing behind it would ever be
# found in the cache.
_STAMP = re.compile(r"(\Ax-anthropic-billing-header:.*?cch=)[^;]{5};", re.DOTALL)
_TRANSLATED = {"system", "messages", "tools", "tool_choice", "stop_sequences", "thinking"}
# What would make an answer that is no message: several, or with figures that a stream lacks.
_DROPPED = {"n", "logprobs", "top_logprobs", "n_probs", "n_indent", "verbose", "reasoning_format"}
_LEFT_OUT = _TRANSLATED | _DROPPED
_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def chat_request(body: bytes) -> bytes | None:
    """The same request for `/v1/chat/completions`; None: it is not in Anthropic's form."""
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
        return None
    chat: Json = {name: value for name, value in asked.items() if name not in _LEFT_OUT}
    chat.setdefault("max_tokens", ANSWER_TOKENS)
    chat["stream_options"] = {"include_usage": True}
    chat["messages"] = _system(asked.get("system"))
    for message in asked["messages"]:
        chat["messages"] += _messages(message)
    if isinstance(tools := asked.get("tools"), list):
        chat["tools"] = [_tool(tool) for tool in tools if isinstance(tool, dict)]
    if isinstance(choice := asked.get("tool_choice"), dict):
        chat["tool_choice"] = _CHOICES.get(str(choice.get("type")), "auto")
        if choice.get("disable_parallel_tool_use") is True:
            chat["parallel_tool_calls"] = False
    if "stop_sequences" in asked:
        chat["stop"] = asked["stop_sequences"]
    thinking = asked.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        chat["thinking_budget_tokens"] = thinking.get("budget_tokens", 10_000)
    return msgspec.json.encode(chat)


def _system(system: Any) -> list[Json]:
    if system is None:
        return []
    if isinstance(system, str):
        text = _STAMP.sub(r"\1fffff;", system)
    else:
        text = "".join(_STAMP.sub(r"\1fffff;", words) for words in _texts(system))
    return [{"role": "system", "content": text}]


def _messages(message: Any) -> list[Json]:
    """One message as one or several: results of tools are messages of their own."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return [message]  # the engine says what it thinks of it
    parts: list[Json] = []
    calls: list[Json] = []
    results: list[Json] = []
    thought = ""
    for block in _blocks(message["content"]):
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": block.get("text", "")})
            case "image":
                parts += _image(block)
            case "thinking":
                thought += str(block.get("thinking", ""))
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                function = {"name": block.get("name", ""), "arguments": arguments}
                calls.append({"id": block.get("id", ""), "type": "function", "function": function})
            case "tool_result":
                results.append(_result(block))
    said: list[Json] = []
    if parts or calls or thought:
        said.append({"role": message.get("role"), "content": parts or ""})
        if calls:
            said[0]["tool_calls"] = calls
        if thought:
            said[0]["reasoning_content"] = thought
    # What tools answered comes before what the user adds: it belongs to the calls above it.
    return results + said


def _result(block: Json) -> Json:
    """What a tool answered: plain text unless there are images in it."""
    content = block.get("content")
    if not isinstance(content, str):
        blocks = _blocks(content)
        if any(part.get("type") == "image" for part in blocks):
            content = []
            for part in blocks:
                text = {"type": "text", "text": part.get("text", "")}
                content += [text] if part.get("type") == "text" else _image(part)
        else:
            content = "".join(_texts(blocks))
    return {"role": "tool", "tool_call_id": block.get("tool_use_id", ""), "content": content}


def _image(block: Json) -> list[Json]:
    source = block.get("source")
    if not isinstance(source, dict):
        return []
    url = source.get("url", "")
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return [{"type": "image_url", "image_url": {"url": url}}]


def _tool(tool: Json) -> Json:
    function = {
        "name": tool.get("name", ""),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _blocks(content: Any) -> list[Json]:
    return [block for block in content if isinstance(block, dict)] if content else []


def _texts(content: Any) -> list[str]:
    """The words of the text blocks."""
    blocks = _blocks(content) if isinstance(content, list) else []
    return [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
