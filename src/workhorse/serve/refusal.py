"""The gateway's own errors in the shape that OpenAI clients read.

Every one says who speaks, so that nobody looks for the engine's fault in the gateway. What the
engine answers is never put into this shape: it passes through, with the word that it is its own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from workhorse.errors import AppError, Speaker
from workhorse.serve.busy import Busy
from workhorse.text import Text

# How long a client should wait before it asks a restarting engine again: about a load.
RETRY_AFTER_S = 5

# OpenAI's and llama.cpp's words for the classes of errors.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}

REFUSES = Text("refuses connections", "拒绝连接")
DIED_SILENT = Text("died before it answered", "在作答之前退出")
DIED_ANSWERING = Text("died while it answered", "在作答途中退出")


class EngineLost(AppError):
    """The engine did not take a request, or took it and gave no whole answer."""

    def __init__(self, how: Text) -> None:
        super().__init__(
            Text(f"The engine {how.en}.", f"推理引擎{how.zh}。"),
            Text(
                "It is being started again: send the request once more.",
                "引擎正在重新启动，请稍后重发请求。",
            ),
            speaker="gateway",
        )


class LinkCut(EngineLost):
    """The answer of an engine on another machine broke off: the engine, or something in between."""

    def __init__(self) -> None:
        AppError.__init__(
            self,
            Text(
                "The connection to the engine was lost while it answered.",
                "应答途中与推理引擎的连接中断。",
            ),
            Text("Send the request once more.", "请重发请求。"),
            speaker="gateway",
        )


class LinkLost(LinkCut):
    """Nothing was heard any more of that machine; the request may be asked again elsewhere."""


class ClientError(AppError):
    """The client's own mistake; `param` names what it is about, where that is one thing."""

    def __init__(
        self,
        what: Text,
        next_step: Text,
        *,
        speaker: Speaker = "gateway",
        param: str | None = None,
    ) -> None:
        super().__init__(what, next_step, speaker=speaker)
        self.param = param


class NotFound(ClientError):
    """What the client asked for is not here: no use in asking again."""


class NotTaken(ClientError):
    """What the client sent cannot be answered, by whomever and whenever it is asked again."""


def far_media(address: str) -> NotTaken:
    """The refusal of an image or sound that the engine would have to fetch."""
    return NotTaken(
        Text(
            f"The request points to {address!r}; what lies elsewhere is not fetched.",
            f"请求引用了 {address}；服务不会抓取外部内容。",
        ),
        Text(
            "Send the image itself: data:image/png;base64,…",
            "请直接发送图像内容：data:image/png;base64,…",
        ),
        speaker="gateway",
    )


def unreadable() -> NotTaken:
    """The refusal of a request that may carry media and cannot be looked into."""
    return NotTaken(
        Text(
            "The request is no JSON, or has more values than can be looked through for images.",
            "请求不是 JSON，或包含的值过多，无法检查其中的图像。",
        ),
        Text("Send one JSON document in UTF-8.", "请发送 UTF-8 编码的 JSON 文档。"),
        speaker="gateway",
    )


def takes_no_images(model: str) -> NotTaken:
    """The refusal of an image for a model that was started without a projector."""
    return NotTaken(
        Text(
            f"The model {model} takes no images: it was started without a projector.",
            f"模型 {model} 未加载投影器，不能接收图像。",
        ),
        Text(
            "Send text alone. Who runs the service can start it with `--mmproj FILE`, where the "
            "model has such a file.",
            "请只发送文本。若该模型有投影器文件，服务的管理员可用 `--mmproj 文件` 启动。",
        ),
        speaker="gateway",
    )


def no_such_model(model: str | None, names: Sequence[str]) -> NotFound:
    """The refusal of a model that nobody serves; `names` are those that the client may ask for."""
    if not names:
        what = Text("No model is served here to this client.", "此处没有该客户端可用的模型。")
        step = Text(
            "Who runs the service sees with `workhorse keys list` what a key is for.",
            "服务的管理员可用 `workhorse keys list` 查看密钥的适用范围。",
        )
    elif model is None:
        what = Text("The request does not name its model.", "请求未指定模型。")
        step = Text(f"Served here: {', '.join(names)}.", f"此处提供：{'、'.join(names)}。")
    else:
        what = Text(
            f"The request names the model {model[:80]!r}, which is not served here.",
            f"请求的模型 {model[:80]} 未在此提供。",
        )
        step = Text(f"Served here: {', '.join(names)}.", f"此处提供：{'、'.join(names)}。")
    return NotFound(
        what,
        step,
        speaker="gateway",
    )


def out_of_service() -> AppError:
    """The refusal while there is no engine at all: its card was taken out of service."""
    return AppError(
        Text("Every engine was taken out of service.", "所有推理引擎均已停止服务。"),
        Text(
            "Who runs this service sees why: workhorse status",
            "服务的管理员可查看原因：workhorse status",
        ),
        speaker="gateway",
    )


def json_response(document: object, *, status: int = 200) -> web.Response:
    """One JSON document as the whole answer."""
    body = msgspec.json.encode(document)
    return web.Response(status=status, body=body, content_type="application/json")


def refusal(status: int, message: str, speaker: Speaker = "gateway") -> dict[str, Any]:
    """The error document for an HTTP status."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message, "type": kind, "param": None, "code": status, "speaker": speaker}
    return {"error": error}


def said_by_engine(document: dict[str, Any]) -> dict[str, Any]:
    """An error document of the engine, as it is but for who speaks."""
    error = document.get("error")
    if not isinstance(error, dict):
        return document
    return document | {"error": {"speaker": "engine"} | error}


def refuse(error: AppError) -> web.Response:
    """The answer to a request that an error of ours, or of the engine's owner, has ended."""
    if isinstance(error, Busy):
        return _refuse_busy(error)
    status = status_of(error)
    document = refusal(status, str(error), error.speaker)
    if isinstance(error, ClientError):
        document["error"]["param"] = error.param
    response = json_response(document, status=status)
    if status >= 500:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def status_of(error: AppError) -> int:
    """The HTTP status of such an error."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, NotTaken):
        return 400
    if isinstance(error, Busy):
        return 503 if error.why == "gone" else 429
    return 502 if isinstance(error, EngineLost) else 503


def _refuse_busy(error: Busy) -> web.Response:
    """429, when to ask again, and where in the line the request would have stood."""
    status = status_of(error)
    document = refusal(status, str(error), error.speaker)
    if error.position is not None:
        queue = {"position": error.position, "expected_wait_s": error.expected_wait_s}
        document["error"]["queue"] = queue
    response = json_response(document, status=status)
    response.headers["Retry-After"] = str(error.retry_after_s)
    if error.position is not None:
        response.headers["X-Queue-Position"] = str(error.position)
    return response


def stream_refusal(error: AppError, status: int | None = None) -> dict[str, Any]:
    """The error document for a stream whose status is out already, and was another one."""
    return refusal(status or status_of(error), str(error), error.speaker)
