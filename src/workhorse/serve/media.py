"""Images and sound in a request: what must not go on to an engine. Pure.

An engine fetches an address that a client sends as an image (`handle_media`, server-common.cpp of
llama.cpp, commit 0c1e570, 2026-10-01; vLLM too), from inside the network that the service is in.
So only what a request carries itself is let through.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

# Where the forms of OpenAI and Anthropic carry media: a text, or an object with `url` or `data`.
_IMAGES = ("image_url", "input_image")
_OTHERS = ("video_url", "input_video", "audio_url", "input_audio")
_PLACES = ("url", "data")
# A request without any of this has no media; ASCII may be written as `\u005f` too.
_SIGNS = (b"_url", b'"input_', b'"source"', b"\\u004", b"\\u005", b"\\u006", b"\\u007")
# More values than a request with media has: each takes up to 232 bytes once it is read.
_COMMAS_MAX = 1_000_000
# The engines take base64 without a scheme too; that has no colon.
_FAR = re.compile(r"[\0- ]*(?!data:)(http|[a-z][a-z0-9+.-]{0,63}:)", re.IGNORECASE)
_NOT_READ = ("tools", "tool_choice", "response_format")


@dataclass(frozen=True, slots=True)
class Media:
    """What a request carries beside text."""

    images: int = 0
    far: str | None = None  # the first address among them that somebody would have to fetch


def media_in(body: bytes) -> Media | None:
    """What a request's body carries; None: it cannot be read, and an engine perhaps can."""
    if not any(sign in body for sign in _SIGNS):
        return Media()
    if body.count(b",") > _COMMAS_MAX:
        return None
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(asked, dict):
        return Media()
    images, far = 0, None
    for is_image, place in _media([value for key, value in asked.items() if key not in _NOT_READ]):
        images += is_image
        if far is None and _FAR.match(place):
            far = place[:200]
    return Media(images, far)


def _media(values: list[Any]) -> Iterator[tuple[bool, str]]:
    """Each place that media come from, and whether it is an image's."""
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += (one for one in value if isinstance(one, dict | list))
        if not isinstance(value, dict):
            continue
        for key, one in value.items():
            if key in _IMAGES or key in _OTHERS:
                yield from ((key in _IMAGES, place) for place in _places(one))
            elif key == "source" and isinstance(one, dict):  # Anthropic's
                yield from ((value.get("type") == "image", place) for place in _places(one))
            elif isinstance(one, dict | list):
                values.append(one)


def _places(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (one for key in _PLACES if isinstance(one := value.get(key), str))
