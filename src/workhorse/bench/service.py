"""Learn from a service what the protocol needs: its model, its tokenizer, prompts for it."""

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import aiohttp
import msgspec

from workhorse.bench.scenario import (
    Scenario,
    TokenCost,
    corpus,
    text_prompts,
    token_prompts,
    words,
)
from workhorse.bench.transcript import Chunk, refusal_words
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

Prompt = Sequence[int] | str

ASK_TIMEOUT_S = 60.0  # a sample of the prompt takes a slow machine seconds, never this long
SAMPLE_CHARACTERS = 600  # some 150 tokens: enough to average over, quick on a slow machine


@dataclass(frozen=True, slots=True)
class Service:
    """A service that answered: its address without `/v1`, and the model it names first."""

    url: str
    model: str | None
    headers: dict[str, str] = field(repr=False)  # holds the key


class ModelEntry(msgspec.Struct):
    """One model of `/v1/models`."""

    id: str


class ModelList(msgspec.Struct):
    """The answer of `/v1/models`."""

    data: list[ModelEntry] = []


class Tokens(msgspec.Struct):
    """The answer of llama-server's `/tokenize`."""

    tokens: list[int]


def service_url(url: str) -> str:
    """The address without a trailing `/v1`; an `AppError` for what is no HTTP address."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise AppError(
            Text(f"{url!r} is not an HTTP address.", f"{url!r} 不是 HTTP 地址。"),
            Text(
                "Write it like http://127.0.0.1:8080.",
                "请写成 http://127.0.0.1:8080 这样的形式。",
            ),
            exit_code=EXIT_USAGE,
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


async def find_service(
    session: aiohttp.ClientSession, url: str, api_key: str | None = None
) -> Service:
    """The service at `url`; an `AppError` when nobody is there or it refuses."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = service_url(url)
    service = Service(base, None, headers)
    status, body = await ask(session, service, "GET", "/v1/models")
    if status in (401, 403):
        raise key_refused(base)
    if status == 503:
        said = refusal_words(body)
        raise AppError(
            Text(f"{base} is not ready: {said}", f"{base} 尚未就绪：{said}"),
            Text("Wait until it is, then measure.", "等它就绪以后再测。"),
        )
    try:
        models = msgspec.json.decode(body, type=ModelList).data if status == 200 else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise AppError(
            Text(
                f"{base} answers, but not as an OpenAI-compatible service.",
                f"{base} 有应答，但不是兼容 OpenAI 的服务。",
            ),
            Text("Check the address and the port.", "请检查地址和端口。"),
        ) from None
    return replace(service, model=models[0].id if models else None)


async def make_prompts(
    session: aiohttp.ClientSession, service: Service, scenario: Scenario, seed: int
) -> tuple[Prompt, ...]:
    """One prompt a request, the warm-up's last.

    Exactly as long as asked where the service has a `/tokenize`; elsewhere text of about that
    length, and the runs say what it really was.
    """
    text = corpus(seed, scenario.requests)
    tokens = await tokenize(session, service, text, add_special=False)
    if tokens:
        prefix = await tokenize(session, service, "", add_special=True) or ()
        return token_prompts(tokens, scenario, seed, prefix)
    cost = TokenCost(
        english=await tokens_per_character(session, service, text, english=True),
        other=await tokens_per_character(session, service, text, english=False),
    )
    return text_prompts(text, scenario, seed, cost)


async def tokenize(
    session: aiohttp.ClientSession, service: Service, content: str, *, add_special: bool
) -> list[int] | None:
    """The tokens of `content` by the model's own tokenizer; None where it is not shown."""
    question = {"content": content, "add_special": add_special}
    status, body = await ask(session, service, "POST", "/tokenize", question)
    if status != 200:
        return None
    try:
        return msgspec.json.decode(body, type=Tokens).tokens
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def tokens_per_character(
    session: aiohttp.ClientSession, service: Service, text: str, *, english: bool
) -> float:
    """What one character of a language costs, by the usage of a one-token request."""
    sample = "".join(word for word in words(text) if word.isascii() == english)
    sample = sample[: SAMPLE_CHARACTERS if english else SAMPLE_CHARACTERS // 3]
    question = {"model": service.model, "prompt": sample, "max_tokens": 1, "cache_prompt": False}
    status, body = await ask(session, service, "POST", "/v1/completions", question)
    if status in (401, 403):
        raise key_refused(service.url)
    if status != 200:
        raise cannot_complete(service.url, f"HTTP {status}: {refusal_words(body)}")
    try:
        usage = msgspec.json.decode(body, type=Chunk).usage
    except (msgspec.DecodeError, UnicodeDecodeError):
        usage = None
    counted = usage.prompt_tokens if usage else None
    # Without any count: a token is about four English characters or one of another script.
    return counted / len(sample) if counted else (0.25 if english else 1.0)


async def ask(
    session: aiohttp.ClientSession,
    service: Service,
    method: str,
    path: str,
    question: Mapping[str, object] | None = None,
) -> tuple[int, bytes]:
    """Status and body of a small request; an `AppError` when nobody answers."""
    url = service.url + path
    try:
        async with (
            asyncio.timeout(ASK_TIMEOUT_S),
            session.request(
                method, url, json=question, headers=service.headers, allow_redirects=False
            ) as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise nobody_there(service.url, cause(error)) from error


def cause(error: Exception) -> str:
    """The system's own words for a connection that failed, without the library's wrapping."""
    if isinstance(error, TimeoutError):
        return os.strerror(errno.ETIMEDOUT)
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # a name that does not resolve has a negative one
        return os.strerror(number)
    return str(error) or type(error).__name__


def nobody_there(base: str, cause: str) -> AppError:
    """No HTTP answer at all."""
    return AppError(
        Text(f"No service answers at {base}: {cause}.", f"{base} 没有服务应答：{cause}。"),
        Text(
            "Start one with `workhorse up`, or give the address of a running one.",
            "用 workhorse up 启动一个，或给出正在运行的服务地址。",
        ),
    )


def key_refused(base: str) -> AppError:
    """The service wants a key, or another one."""
    return AppError(
        Text(f"{base} refuses the API key.", f"{base} 拒绝了 API 密钥。"),
        Text(
            "Give the right one with --api-key-file or in WORKHORSE_API_KEY.",
            "请用 --api-key-file 或环境变量 WORKHORSE_API_KEY 提供正确的密钥。",
        ),
    )


def cannot_complete(base: str, said: str) -> AppError:
    """The service does not complete the protocol's request."""
    return AppError(
        Text(
            f"{base} does not serve the measurement's request: {said}",
            f"{base} 无法完成测量请求：{said}",
        ),
        Text(
            "Check that it serves /v1/completions and that its context holds prompt and answer, "
            "or lower --prompt-tokens.",
            "确认它提供 /v1/completions，且上下文放得下提示词和回答；或调小 --prompt-tokens。",
        ),
        speaker="engine",
    )
