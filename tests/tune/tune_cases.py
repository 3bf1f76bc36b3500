"""Machines, a model and a build as the tests of changes and spaces take them."""

from dataclasses import replace

import builders
from workhorse.plan.planner import make_plan
from workhorse.plan.what_if import assumed_build
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Model
from workhorse.tune.given import Given
from workhorse.tune.trial import Constraints, Goal
from workhorse.units import GIB

CARD_HOST = builders.machine(nodes=2, cores=14, threads_a_core=2, gpus=(builders.gpu(),))
FLAGS = assumed_build(CARD_HOST)
assert FLAGS is not None
BUILD = replace(
    builders.EMBEDDED, knows=(*FLAGS.knows, "--spec-type", "--spec-draft-n-max"), forms=FLAGS.forms
)
SHAPE = builders.model(
    layers=32, embedding=2048, feed_forward=14336, heads=16, kv_heads=4, head_size=128
)
BOX = builders.machine(nodes=2, cores=14, threads_a_core=2, ram_bytes=64 * GIB)


def case(
    machine: Machine = BOX,
    model: Model = SHAPE,
    build: EngineBuild = BUILD,
    goal: Goal = "decode",
    slots: int = 1,
    **more: object,
) -> Given:
    plan = make_plan(machine, model, build, Wish(context_tokens=4096, slots=4))
    assert not plan.verdict.blocked
    limits = Constraints(4096, slots, 0.2)
    return Given(machine, model, plan, goal, limits, **more)  # type: ignore[arg-type]
