"""What a service learns from its own measurement, and what not."""

from dataclasses import replace
from pathlib import Path

import pytest
from service_inside import Listener

import builders
from workhorse.bench.scenario import STANDARD
from workhorse.config import Places
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Drafts, Run
from workhorse.store import Store
from workhorse.up.decide import Decision
from workhorse.up.measuring import conclude

ARRIVALS_S = tuple(0.5 + 0.01 * n for n in range(STANDARD.output_tokens))
RUN = Run(0, STANDARD.prompt_tokens, 0, STANDARD.output_tokens, ARRIVALS_S, ARRIVALS_S[-1])


@pytest.mark.parametrize("kind", [None, "ngram-mod", "draft-mtp"])
def test_tokens_guessed_ahead_teach_nothing_of_the_memory(tmp_path: Path, kind: str | None) -> None:
    machine, model = builders.machine(), builders.model()
    plan = make_plan(machine, model, builders.EMBEDDED, Wish(context_tokens=2048, slots=1))
    plan = replace(plan, drafts=None if kind is None else Drafts(kind))
    where, heard = Places(tmp_path), Listener()
    decision = Decision(machine, model, plan)
    conclude(decision, STANDARD, "http://127.0.0.1:1", (RUN,), where, heard)
    store = Store(where.store)
    assert len(store.experiences()) == (kind is None)
    (kept,) = store.run("up-1")  # a report shows it all the same
    assert kept.conditions.plan == plan
    assert [str(kind) in words for words in heard.said] == ([] if kind is None else [True])
