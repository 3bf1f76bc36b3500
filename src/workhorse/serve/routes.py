"""The gateway's routes and what it answers itself: models, health, metrics, errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from workhorse.errors import AppError
from workhorse.serve import openapi
from workhorse.serve.auth import ACCESS, NotLetIn
from workhorse.serve.backend import READY, Roster
from workhorse.serve.dialect import CHAT, MESSAGES, RESPONSES, TEXT
from workhorse.serve.figures import Json
from workhorse.serve.keys import Key
from workhorse.serve.metrics import CLIENT_LEFT, CONTENT_TYPE, Metrics
from workhorse.serve.proxy import Proxy
from workhorse.serve.refusal import json_response, no_such_model, refusal, refuse
from workhorse.serve.sse import parse_object
from workhorse.serve.who import KEY

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# What `/openapi.json` says of routes that are mounted beside the gateway's own.
BESIDE = web.AppKey("beside", dict[str, Json])

REASON_S = 0.5  # for an engine's owner to say why it is not ready

log = logging.getLogger(__name__)


class Routes:
    """What each route does."""

    def __init__(self, roster: Roster, proxy: Proxy, metrics: Metrics) -> None:
        self._roster = roster
        self._proxy = proxy
        self._metrics = metrics

    def table(self) -> list[web.RouteDef]:
        """Every route of the gateway."""
        return [
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/completions", self._completion),
            web.post("/v1/messages", self._messages),
            web.post("/v1/responses", self._responses),
            web.post("/v1/embeddings", self._proxy.compute),
            web.post("/v1/rerank", self._proxy.compute),
            web.post("/rerank", self._proxy.compute),
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._one_model),
            web.post("/v1/messages/count_tokens", self._proxy.forward),
            web.post("/v1/responses/input_tokens", self._proxy.forward),
            web.post("/v1/chat/completions/input_tokens", self._proxy.forward),
            web.post("/apply-template", self._proxy.forward),
            web.post("/tokenize", self._proxy.forward),
            web.post("/detokenize", self._proxy.forward),
            web.get("/props", self._proxy.forward),
            web.get("/healthz", self._health),
            web.get("/metrics", self._page),
            web.get("/openapi.json", self._document),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.generate(request, CHAT)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.generate(request, TEXT)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.generate(request, MESSAGES)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.generate(request, RESPONSES)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        """The engine's own list, under the name that the user gave the model.

        With several models: their names, and what each engine can take.
        """
        key = request.get(KEY)
        names = [one for one in self._roster.models() if may_ask(key, one)]
        if len(self._roster.models()) != 1 or not names:
            return json_response({"object": "list", "data": [_model(name) for name in names]})
        response = await self._proxy.forward(request)
        listed = parse_object(response.body) if isinstance(response.body, bytes) else None
        if response.status != 200 or listed is None:
            return response
        for model in listed.get("data") or ():
            model["id"] = names[0]
        for model in listed.get("models") or ():  # Ollama's form of the list
            model["name"] = model["model"] = names[0]
        return json_response(listed)

    async def _one_model(self, request: web.Request) -> web.Response:
        """One model of the list, by its name."""
        key, name = request.get(KEY), request.match_info["model"]
        names = [one for one in self._roster.models() if may_ask(key, one)]
        if name not in names:
            raise no_such_model(name, names)
        return json_response(_model(name))

    async def _health(self, request: web.Request) -> web.Response:
        """200 when an engine takes requests; else 503, its state and, for a key, the reason."""
        served = self._roster.served
        if any(one.backend.state == READY for one in served):
            return json_response({"status": "ok", "state": READY})
        state = served[0].backend.state if served else "out of service"
        health: dict[str, Any] = {"status": "unavailable", "state": state}
        known = not request.app[ACCESS].asks_for_key or KEY in request
        try:
            if served and known:
                async with asyncio.timeout(REASON_S):
                    await served[0].backend.address(0)
        except AppError as error:
            health |= {"reason": str(error), "speaker": error.speaker}
        except TimeoutError:  # requests wait for the end of a reload; who looks after us does not
            pass
        return json_response(health, status=503)

    async def _document(self, request: web.Request) -> web.Response:
        beside = request.app.get(BESIDE)
        asks_for_key = request.app[ACCESS].asks_for_key
        return json_response(openapi.document(asks_for_key=asks_for_key, beside=beside))

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})


def may_ask(key: Key | None, model: str) -> bool:
    """May the owner of a key ask for a model?"""
    return key is None or key.models is None or model in key.models


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": "workhorse"}


def answer_errors(metrics: Metrics) -> Any:
    """The middleware that counts every request and gives each error its shape."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = CLIENT_LEFT
        try:
            response = await _answered(request, handler)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            metrics.count_request(resource.canonical if resource else "other", status)

    return middleware


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except NotLetIn as error:
        return error.answer()
    except AppError as error:
        return refuse(error)
    except web.HTTPException as error:
        return _http_refusal(request, error)
    except web.RequestPayloadError as error:
        return json_response(refusal(400, f"The request's body is broken: {error}."), status=400)
    except ConnectionError:  # the client left while we wrote to it
        raise
    except Exception:
        if request.writer.output_size:
            raise  # half an answer is out: nothing can be put in its place
        log.exception("The gateway failed on %s %s.", request.method, request.path)
        return json_response(refusal(500, "The gateway failed; its log says how."), status=500)


def _http_refusal(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's own refusals: unknown route, wrong method, body too large."""
    message = error.text or error.reason
    if error.status in (404, 405):
        routes = sorted(
            f"{route.method} {route.resource.canonical}"
            for route in request.app.router.routes()
            if route.resource and route.method != "HEAD"
        )
        message = (
            f"There is no {request.method} {request.path} here. There is: {', '.join(routes)}."
        )
    response = json_response(refusal(error.status, message), status=error.status)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
