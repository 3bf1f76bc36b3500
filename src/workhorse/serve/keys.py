"""Keys: who may ask, for what, and for how much. Pure.

A key is `wh-ID-SECRET`: eight characters that name it and may be seen, then 256 random bits.
Kept is the id and a BLAKE2b digest. A slow hash (scrypt, Argon2) protects what people can guess;
256 random bits cannot be guessed, and a slow hash would let anybody burn a core by asking with
wrong keys.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Priority = Literal["chat", "batch"]
WhyNot = Literal["none", "unknown", "revoked", "expired"]

PREFIX = "wh-"
LONGEST_SECRET = 200  # characters; a made one has 55
_ID_BYTES = 4  # eight hexadecimal digits
_SECRET_BYTES = 32
_PERSON = b"workhorse-key-1"  # another use of the same secret has another digest
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class Key:
    """Who asks, and what that one may ask for; `None`: no limit."""

    name: str
    rpm: int | None = None  # requests a minute
    tpm: int | None = None  # tokens a minute, prompt and answer together
    concurrency: int | None = None  # requests at the same time
    models: tuple[str, ...] | None = None  # None: every model
    expires_unix_s: float | None = None  # None: never
    priority: Priority = "chat"


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key as it is stored: who, and by what to know the secret again."""

    key: Key
    id: str
    digest: bytes
    added_unix_s: float
    revoked_unix_s: float | None = None


def make_secret() -> str:
    """A new secret, to be shown once."""
    return f"{PREFIX}{secrets.token_hex(_ID_BYTES)}-{secrets.token_urlsafe(_SECRET_BYTES)}"


def id_of(secret: str) -> str:
    """The part of a secret that may be seen; empty when it is no key of ours."""
    head, dash, _ = secret.removeprefix(PREFIX).partition("-")
    return head if secret.startswith(PREFIX) and dash else ""


def digest_of(secret: str) -> bytes:
    """What is kept of a secret: 32 bytes."""
    words = secret.encode(errors="surrogatepass")
    return hashlib.blake2b(words, digest_size=32, person=_PERSON).digest()


class KeyRing:
    """The keys of a service at one moment."""

    def __init__(self, kept: Iterable[KeptKey] = ()) -> None:
        self.kept = tuple(kept)
        self._by_id = {one.id: one for one in self.kept}

    def __bool__(self) -> bool:
        """Was any key made? Then one is asked for, even where all are revoked by now."""
        return bool(self._by_id)

    def named(self, name: str, now_unix_s: float) -> Key | None:
        """The key in force of that name; None: there is none."""
        for kept in self.kept:
            expires_unix_s = kept.key.expires_unix_s
            over = expires_unix_s is not None and now_unix_s >= expires_unix_s
            if kept.key.name == name and kept.revoked_unix_s is None and not over:
                return kept.key
        return None

    def judge(self, secret: str | None, now_unix_s: float) -> Key | WhyNot:
        """The key that a secret belongs to, or why it opens nothing.

        Only who has the whole secret learns that it was revoked or has expired.
        """
        if not secret:
            return "none"
        if len(secret) > LONGEST_SECRET:
            return "unknown"
        kept = self._by_id.get(id_of(secret))
        # As long for an id that is not there: the time tells nobody which ids are.
        same = hmac.compare_digest(digest_of(secret), kept.digest if kept else _NOBODY)
        if kept is None or not same:
            return "unknown"
        if kept.revoked_unix_s is not None:
            return "revoked"
        expires_unix_s = kept.key.expires_unix_s
        if expires_unix_s is not None and now_unix_s >= expires_unix_s:
            return "expired"
        return kept.key
