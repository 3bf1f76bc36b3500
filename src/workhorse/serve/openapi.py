"""The gateway's OpenAPI document: what each route takes and answers. Pure.

It says of a request what the gateway itself reads and what llama-server demands; every other field
passes on to the engine, so no object is closed.
"""

from workhorse import __version__
from workhorse.serve.figures import Json

Paths = dict[str, Json]

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
OBJECT: Json = {"type": "object", "additionalProperties": True}
EVENT: Json = {"type": "object", "required": ["data"], "properties": {"data": TEXT}}
TOKENS: Json = {"type": "array", "items": {**COUNT, "maximum": 2000}}


def document(*, asks_for_key: bool, beside: Paths | None = None) -> Json:
    """The whole document, OpenAPI 3.1; `beside`: routes that the gateway has not of itself."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "workhorse",
            "version": __version__,
            "description": "OpenAI's and Anthropic's APIs in front of the engines of one machine. "
            "Fields that are not described pass on to the engine.",
        },
        "security": [{"bearer": []}, {"apiKey": []}] if asks_for_key else [],
        "paths": {**_generating(), **_computing(), **_own(), **(beside or {})},
        "components": {
            "schemas": {"Error": _error(), "Message": _message(), "Tool": OBJECT},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def _generating() -> Paths:
    messages = {"type": "array", "items": _ref("Message"), "minItems": 1, "maxItems": 1000}
    chat = {"messages": messages, "tools": {"type": "array", "items": _ref("Tool")}, **_common()}
    answer = {"type": "object", "required": ["choices"]}
    return {
        "/v1/chat/completions": post_route(
            "A chat", object_of(chat, "messages"), answer, stream=True
        ),
        "/v1/completions": post_route(
            "A text that goes on",
            object_of({"prompt": {"anyOf": [TEXT, TOKENS]}, **_common()}, "prompt"),
            answer,
            stream=True,
        ),
        "/v1/messages": post_route(
            "A chat in Anthropic's form",
            object_of({"messages": messages, "system": TEXT, **_common()}, "messages"),
            {"type": "object", "required": ["content", "usage"]},
            stream=True,
        ),
        "/v1/responses": post_route(
            "A chat in OpenAI's newer form",
            object_of({"input": TEXT, "max_output_tokens": COUNT, "stream": _flag()}, "input"),
            {"type": "object", "required": ["output", "status"]},
            stream=True,
        ),
    }


def _computing() -> Paths:
    chat = object_of({"messages": {"type": "array", "items": _ref("Message")}}, "messages")
    words = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
    ranked = {"query": TEXT, "documents": {"type": "array", "items": TEXT, "minItems": 1}}
    counted = {"type": "object", "required": ["input_tokens"]}
    rerank = post_route(
        "Order documents by a question", object_of(ranked, "query", "documents"), OBJECT
    )
    return {
        "/v1/embeddings": post_route(
            "Vectors of texts", object_of({"input": words}, "input"), OBJECT
        ),
        "/v1/rerank": rerank,
        "/rerank": rerank,
        "/v1/messages/count_tokens": post_route("Tokens of a message", chat, counted),
        "/v1/chat/completions/input_tokens": post_route("Tokens of a chat", chat, counted),
        "/v1/responses/input_tokens": post_route(
            "Tokens of a response's input", object_of({"input": TEXT}, "input"), counted
        ),
        "/apply-template": post_route("A chat as the prompt that the model reads", chat, OBJECT),
        "/tokenize": post_route(
            "Text to tokens",
            object_of({"content": TEXT}, "content"),
            {"type": "object", "required": ["tokens"]},
        ),
        "/detokenize": post_route(
            "Tokens to text",
            object_of({"tokens": TOKENS}, "tokens"),
            {"type": "object", "required": ["content"]},
        ),
    }


def _own() -> Paths:
    listed = {"type": "object", "required": ["object", "data"]}
    health = {"type": "object", "required": ["status", "state"]}
    healthy = get_route("Is the service well? Needs no key", health)
    healthy["get"]["responses"]["503"] = _answer("It is not ready.", health)
    healthy["get"]["security"] = []
    text = {"text/plain": {"schema": TEXT}}
    metrics = get_route("Figures in Prometheus' format", OBJECT)
    metrics["get"]["responses"]["200"]["content"] = text
    one = get_route("A model that is served", {"type": "object", "required": ["id"]})
    named = {"name": "model", "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}}
    one["get"]["parameters"] = [named]
    return {
        "/v1/models/{model}": one,
        "/v1/models": get_route("The models that are served", listed),
        "/props": get_route("What the engine says of itself", OBJECT),
        "/healthz": healthy,
        "/metrics": metrics,
        "/openapi.json": get_route("This document", OBJECT),
    }


def _common() -> Json:
    """What the gateway reads of a request that generates."""
    return {
        "model": {**TEXT, "description": "Needed where several models are served."},
        "max_tokens": COUNT,
        "stream": _flag(),
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    }


def _flag() -> Json:
    return {"type": "boolean", "default": False}


def object_of(properties: Json, *required: str) -> Json:
    """An object with these properties; it may have further ones."""
    return {"type": "object", "properties": properties, "required": list(required)}


def post_route(what: str, asked: Json, answer: Json, *, stream: bool = False) -> Json:
    """A route that takes a document."""
    responses = _responses(what, answer)
    if stream:
        responses["200"]["content"]["text/event-stream"] = {"schema": EVENT}
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    return {"post": {"summary": what, "requestBody": body, "responses": responses}}


def get_route(what: str, answer: Json) -> Json:
    """A route that is only asked."""
    return {"get": {"summary": what, "responses": _responses(what, answer)}}


def _responses(what: str, answer: Json) -> Json:
    """An answer, or an error: `code` is its status, `speaker` tells whose words it is."""
    return {"200": _answer(f"{what}.", answer), "default": _answer("An error.", _ref("Error"))}


def _answer(what: str, schema: Json) -> Json:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _error() -> Json:
    error = {
        "type": "object",
        "required": ["message", "type", "code"],
        "properties": {
            "message": TEXT,
            "type": TEXT,
            "code": {"type": "integer", "minimum": 400, "maximum": 599},
            "param": {"type": ["string", "null"]},
            "speaker": {"enum": ["gateway", "engine", "workhorse"]},
        },
    }
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _message() -> Json:
    return {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": TEXT},
    }
