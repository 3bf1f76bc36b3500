"""Which secret opens what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.serve.keys import (
    KeptKey,
    Key,
    KeyRing,
    digest_of,
    id_of,
    make_secret,
)

NOW_S = 1_800_000_000.0
ANN, BOB = make_secret(), make_secret()


def kept(secret: str, name: str, **more: float) -> KeptKey:
    revoked = more.pop("revoked_unix_s", None)
    return KeptKey(Key(name, **more), id_of(secret), digest_of(secret), NOW_S, revoked)


RING = KeyRing((kept(ANN, "ann"), kept(BOB, "bob", expires_unix_s=NOW_S + 60)))


def test_a_secret_opens_what_its_key_may() -> None:
    assert RING.judge(ANN, NOW_S) == Key("ann")
    assert RING.judge(BOB, NOW_S) == Key("bob", expires_unix_s=NOW_S + 60)


def test_a_key_is_over_at_its_time_and_not_before() -> None:
    assert RING.judge(BOB, NOW_S + 59.9) == Key("bob", expires_unix_s=NOW_S + 60)
    assert RING.judge(BOB, NOW_S + 60) == "expired"


def test_a_revoked_key_says_so_only_to_its_owner() -> None:
    ring = KeyRing([kept(ANN, "ann", revoked_unix_s=NOW_S)])
    assert ring  # a key is still asked for
    assert ring.judge(ANN, NOW_S) == "revoked"
    assert ring.judge(ANN[:-1], NOW_S) == "unknown"


def without_id(secret: str) -> str:
    return secret.removeprefix("wh-").partition("-")[2]


@pytest.mark.parametrize(
    "secret",
    [
        ANN[:-1],
        ANN + "A",
        ANN.upper(),
        ANN.removeprefix("wh-"),
        f"wh-{id_of(ANN)}-{without_id(BOB)}",
        f"wh-{id_of(ANN)}-",
        "wh-",
        "wh--",
        "\x00",
        "\udcff",
        "\ud800",
        "x" * 1_000_000,
        digest_of(ANN).hex(),
    ],
)
def test_what_is_almost_a_secret_opens_nothing(secret: str) -> None:
    assert RING.judge(secret, NOW_S) == "unknown"


@given(st.text(max_size=300))
def test_no_text_opens_anything(secret: str) -> None:
    assert RING.judge(secret, NOW_S) in ("none", "unknown")


def test_without_a_secret() -> None:
    assert RING.judge(None, NOW_S) == RING.judge("", NOW_S) == "none"
    assert not KeyRing()


def test_secrets_differ_and_are_not_kept() -> None:
    made = {make_secret() for _ in range(100)}
    assert len(made) == 100
    assert len({id_of(secret) for secret in made}) == 100
    assert all(without_id(secret).encode() not in digest_of(secret) for secret in made)
