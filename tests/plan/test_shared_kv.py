"""One KV pool where the build can limit each slot of it, a cache for each slot elsewhere."""

from dataclasses import replace

import pytest

import builders
from workhorse.engines.llamacpp import settings
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Plan

POOL = ("--kv-unified", "--kv-unified-per-slot")


def plan(knows: tuple[str, ...], *, pooling: bool = False, slots: int | None = None) -> Plan:
    build = replace(builders.EMBEDDED, knows=(*builders.EMBEDDED.knows, *knows))
    model = replace(builders.model(), pooling=pooling)
    return make_plan(builders.machine(), model, build, Wish(slots=slots))


def test_the_slots_share_a_pool_and_each_keeps_its_context() -> None:
    made = plan(POOL)
    assert made.shared_kv
    words = settings(made, 1, "127.0.0.1")
    assert "--kv-unified" in words
    limit = words[words.index("--kv-unified-per-slot") + 1]
    assert int(limit) == made.context_tokens
    assert int(words[words.index("--ctx-size") + 1]) == made.context_tokens * made.slots


@pytest.mark.parametrize("knows", [(), POOL[:1], POOL[1:]])
def test_a_build_without_the_limit_keeps_a_cache_for_each_slot(knows: tuple[str, ...]) -> None:
    made = plan(knows)
    assert not made.shared_kv
    assert not set(POOL) & set(settings(made, 1, "127.0.0.1"))


def test_one_slot_needs_no_pool() -> None:
    assert not plan(POOL, slots=1).shared_kv


def test_a_pooled_model_has_none() -> None:
    assert not plan(POOL, pooling=True).shared_kv
