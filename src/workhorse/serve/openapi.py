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


def document(*, asks_for_key: bool) -> Json:
    """The whole document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "workhorse",
            "version": __version__,
            "description": "OpenAI's and Anthropic's APIs in front of the engines of one machine. "
            "Fields that are not described pass on to the engine.",
        },
        "security": [{"bearer": []}, {"apiKey": []}] if asks_for_key else [],
        "paths": {**_generating(), **_computing(), **_own()},
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
        "/v1/chat/completions": _post("A chat", _object(chat, "messages"), answer, stream=True),
        "/v1/completions": _post(
            "A text that goes on",
            _object({"prompt": {"anyOf": [TEXT, TOKENS]}, **_common()}, "prompt"),
            answer,
            stream=True,
        ),
        "/v1/messages": _post(
            "A chat in Anthropic's form",
            _object({"messages": messages, "system": TEXT, **_common()}, "messages"),
            {"type": "object", "required": ["content", "usage"]},
            stream=True,
        ),
        "/v1/responses": _post(
            "A chat in OpenAI's newer form",
            _object({"input": TEXT, "max_output_tokens": COUNT, "stream": _flag()}, "input"),
            {"type": "object", "required": ["output", "status"]},
            stream=True,
        ),
    }


def _computing() -> Paths:
    chat = _object({"messages": {"type": "array", "items": _ref("Message")}}, "messages")
    words = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
    ranked = {"query": TEXT, "documents": {"type": "array", "items": TEXT, "minItems": 1}}
    counted = {"type": "object", "required": ["input_tokens"]}
    rerank = _post("Order documents by a question", _object(ranked, "query", "documents"), OBJECT)
    return {
        "/v1/embeddings": _post("Vectors of texts", _object({"input": words}, "input"), OBJECT),
        "/v1/rerank": rerank,
        "/rerank": rerank,
        "/v1/messages/count_tokens": _post("Tokens of a message", chat, counted),
        "/v1/chat/completions/input_tokens": _post("Tokens of a chat", chat, counted),
        "/v1/responses/input_tokens": _post(
            "Tokens of a response's input", _object({"input": TEXT}, "input"), counted
        ),
        "/apply-template": _post("A chat as the prompt that the model reads", chat, OBJECT),
        "/tokenize": _post(
            "Text to tokens",
            _object({"content": TEXT}, "content"),
            {"type": "object", "required": ["tokens"]},
        ),
        "/detokenize": _post(
            "Tokens to text",
            _object({"tokens": TOKENS}, "tokens"),
            {"type": "object", "required": ["content"]},
        ),
    }


def _own() -> Paths:
    listed = {"type": "object", "required": ["object", "data"]}
    health = {"type": "object", "required": ["status", "state"]}
    healthy = _get("Is the service well? Needs no key", health)
    healthy["get"]["responses"]["503"] = _answer("It is not ready.", health)
    healthy["get"]["security"] = []
    text = {"text/plain": {"schema": TEXT}}
    metrics = _get("Figures in Prometheus' format", OBJECT)
    metrics["get"]["responses"]["200"]["content"] = text
    one = _get("A model that is served", {"type": "object", "required": ["id"]})
    named = {"name": "model", "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}}
    one["get"]["parameters"] = [named]
    return {
        "/v1/models/{model}": one,
        "/v1/models": _get("The models that are served", listed),
        "/props": _get("What the engine says of itself", OBJECT),
        "/healthz": healthy,
        "/metrics": metrics,
        "/openapi.json": _get("This document", OBJECT),
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


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _post(what: str, asked: Json, answer: Json, *, stream: bool = False) -> Json:
    responses = _responses(what, answer)
    if stream:
        responses["200"]["content"]["text/event-stream"] = {"schema": EVENT}
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    return {"post": {"summary": what, "requestBody": body, "responses": responses}}


def _get(what: str, answer: Json) -> Json:
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
