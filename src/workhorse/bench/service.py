"""Learn from a service how it is asked: its model, its routes, what it takes."""

import asyncio
import errno
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from workhorse.bench.scenario import Prompt
from workhorse.bench.transcript import refusal_words
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

ASK_TIMEOUT_S = 60.0  # a sample of the prompt takes a slow machine seconds, never this long

TEXT_ROUTE, CHAT_ROUTE = "/v1/completions", "/v1/chat/completions"
# Ways to show a tokenizer: llama-server's, vLLM's `/tokenize`, LMDeploy's `/v1/encode`
# (llama.cpp 0.5.0, vLLM 0.32.0, LMDeploy 0.18.0; 2026-11).
Tokenizer = Literal["llama.cpp", "vllm", "lmdeploy"]
NOT_SERVED = (404, 405, 501)
KEY_WANTED = (401, 403)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a service is asked to complete.

    `extras`: it takes `cache_prompt` and `ignore_eos` in its request; strict ones refuse fields
    that they do not know.
    """

    route: str = TEXT_ROUTE
    extras: bool = True
    limit: str = "max_tokens"


# In the order in which they are tried; the last one is OpenAI's own for models of 2024 and later.
DIALECTS = (
    Dialect(),
    Dialect(extras=False),
    Dialect(CHAT_ROUTE),
    Dialect(CHAT_ROUTE, extras=False),
    Dialect(CHAT_ROUTE, extras=False, limit="max_completion_tokens"),
)


@dataclass(frozen=True, slots=True)
class Service:
    """A service that answered: its address without `/v1`, and the model it names first."""

    url: str
    model: str | None
    headers: dict[str, str] = field(repr=False)  # holds the key
    tls: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's authorities
    dialect: Dialect = Dialect()
    tokenizer: Tokenizer | None = None
    owner: str | None = None  # of the model, as `/v1/models` has it: vllm, llamacpp …


class ModelEntry(msgspec.Struct):
    """One model of `/v1/models`."""

    id: str
    owned_by: str | None = None


class ModelList(msgspec.Struct):
    """The answer of `/v1/models`."""

    data: list[ModelEntry] = []


class Shown(msgspec.Struct):
    """What the answers of tokenizers have: vLLM's counts, llama-server's does not."""

    tokens: list[int] | None = None
    count: int | None = None
    input_ids: list[int] | None = None


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
    session: aiohttp.ClientSession,
    url: str,
    api_key: str | None = None,
    *,
    model: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Service:
    """The service at `url`; an `AppError` when nobody is there or it refuses.

    `model`: which of several; None: the first it names.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = service_url(url)
    service = Service(base, None, headers, tls)
    status, body = await ask(session, service, "GET", "/v1/models")
    if status in KEY_WANTED:
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
    chosen = next((one for one in models if model in (None, one.id)), None)
    if model is not None and models and chosen is None:
        raise no_such_model(base, model, [one.id for one in models])
    owner = chosen.owned_by if chosen else None
    service = replace(service, model=chosen.id if chosen else model, owner=owner)
    tokenizer = await find_tokenizer(session, service)
    if tokenizer is not None:
        return replace(service, tokenizer=tokenizer)
    return replace(service, dialect=await find_dialect(session, service))


async def find_tokenizer(session: aiohttp.ClientSession, service: Service) -> Tokenizer | None:
    """How the service shows its tokenizer; None: it does not."""
    question = {"content": "a", "prompt": "a", "add_special": False, "add_special_tokens": False}
    if service.model is not None:
        question["model"] = service.model
    status, body = await ask(session, service, "POST", "/tokenize", question)
    if status in KEY_WANTED:
        raise key_refused(service.url)
    shown = shown_by(status, body)
    if shown.tokens:
        return "llama.cpp" if shown.count is None else "vllm"
    status, body = await ask(
        session, service, "POST", "/v1/encode", {"input": "a", "add_bos": False}
    )
    return "lmdeploy" if shown_by(status, body).input_ids else None


def shown_by(status: int, body: bytes) -> Shown:
    """What a tokenizer answered; nothing for any other answer."""
    try:
        return msgspec.json.decode(body, type=Shown) if status == 200 else Shown()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Shown()


async def find_dialect(session: aiohttp.ClientSession, service: Service) -> Dialect:
    """The first way of asking that the service takes; AppError when it takes none."""
    said = ""
    not_served: set[str] = set()
    for dialect in DIALECTS:
        if dialect.route in not_served:
            continue
        tried = replace(service, dialect=dialect)
        question = completion(tried, "Hello", 1)
        status, body = await ask(session, tried, "POST", dialect.route, question)
        if status == 200:
            return dialect
        if status in KEY_WANTED:
            raise key_refused(service.url)
        if status in NOT_SERVED:
            not_served.add(dialect.route)
        said = f"HTTP {status}: {refusal_words(body)}"
    raise cannot_complete(service.url, said)


def completion(
    service: Service, prompt: Prompt, output_tokens: int, *, cache: bool = False
) -> dict[str, object]:
    """A request to complete `prompt` with exactly so many tokens, as far as the service can.

    `cache_prompt` is llama-server's, `ignore_eos` every engine's; where they are not known the
    doubts say what came of it.
    """
    dialect = service.dialect
    asked: dict[str, object] = {dialect.limit: output_tokens, "temperature": 0}
    if service.model is not None:
        asked["model"] = service.model
    if dialect.route == CHAT_ROUTE:
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt
    if dialect.extras:
        asked |= {"cache_prompt": cache, "ignore_eos": True}
    return asked


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
                method,
                url,
                json=question,
                headers=service.headers,
                allow_redirects=False,
                ssl=service.tls or True,
            ) as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            raise not_trusted(service.url, cause(error)) from error
        raise nobody_there(service.url, cause(error)) from error


def cause(error: Exception) -> str:
    """The system's own words for a connection that failed, without the library's wrapping."""
    if isinstance(error, TimeoutError):
        return os.strerror(errno.ETIMEDOUT)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    if isinstance(error, ssl.SSLError):
        return getattr(error, "verify_message", "") or str(error)
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


def not_trusted(base: str, cause: str) -> AppError:
    """The certificate is not one that this machine trusts."""
    return AppError(
        Text(
            f"The certificate of {base} is not trusted: {cause}.",
            f"{base} 的证书不受信任：{cause}。",
        ),
        Text(
            "Give the certificate, or that of its authority, with --ca-file.",
            "请用 --ca-file 指定该证书或其签发机构的证书。",
        ),
    )


def no_such_model(base: str, model: str, models: Sequence[str]) -> AppError:
    """The service has other models."""
    names = ", ".join(models[:10])
    return AppError(
        Text(f"{base} has no model {model!r}.", f"{base} 没有模型 {model!r}。"),
        Text(f"It has: {names}.", f"可用的模型：{names}。"),
        exit_code=EXIT_USAGE,
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
            "Check that it completes texts or chats and that its context holds prompt and answer, "
            "or lower --prompt-tokens.",
            "确认它提供补全或对话接口，且上下文放得下提示词和回答；或调小 --prompt-tokens。",
        ),
        speaker="engine",
    )
