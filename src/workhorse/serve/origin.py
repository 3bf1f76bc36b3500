"""Which web pages may ask: those of the gateway itself, not another site's. Pure.

A page can post to an address without reading the answer, and with a name that it lets point here
(DNS rebinding) it could read it as well. Programs send no Origin and the right Host.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def refused_by(
    host: str | None, origin: str | None, *, names: Collection[str] = (), keyed: bool = False
) -> str | None:
    """Why a request is refused for its `Host` and `Origin` headers; None: it is not.

    `names`: what this gateway is called besides loopback. `keyed`: a key is asked for, which a
    page of another site does not have; then any Host will do, and a page only has to come from
    the host that it asks.
    """
    known = (*LOOPBACK, *names)
    # An HTTP/1.0 program sends no Host; every browser sends one.
    sent_to = LOOPBACK[0] if host is None else _name(f"//{host}")
    if sent_to is None or (not keyed and sent_to not in known):
        return f"Host {host}"
    if origin is None:
        return None
    came_from = _name(origin)
    same = keyed and came_from == sent_to
    return None if came_from is not None and (same or came_from in known) else f"Origin {origin}"


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # such as half an IPv6 address
        return None
