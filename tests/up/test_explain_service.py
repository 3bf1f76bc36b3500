"""`workhorse explain` against a whole service: gateway and engine told apart."""

from pathlib import Path

import pytest
from service_process import StartService

from test_up import running_service, workhorse
from workhorse.codec import from_json
from workhorse.records import Attribution
from workhorse.store import Store

SHORT = ("--rounds", "6", "--output-tokens", "24", "--prompt-tokens", "64", "--json")


def test_the_gateway_is_told_from_the_engine(start_service: StartService) -> None:
    service = start_service("--gap-ms", "10")
    done = service.command("explain", service.url, *SHORT)
    assert done.returncode == 0, done.stderr
    found = from_json(Attribution, done.stdout, what="stdout")
    assert {"gateway", "delivery", "sampling"} <= {term.code for term in found.terms}
    for one in found.rounds:
        times = {timed.variant: timed for timed in one}
        assert times["direct"].engine_token_s == pytest.approx(0.010, rel=0.2)
    assert sum(term.seconds for term in found.terms) == pytest.approx(found.token_s)


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_the_real_engine_behind_the_gateway(tmp_path: Path, real_model: Path) -> None:
    with running_service(tmp_path, real_model, ("--no-measure",)) as service:
        done = workhorse(tmp_path, "explain", service.url, *SHORT)
    assert done.returncode == 0, done.stderr
    found = from_json(Attribution, done.stdout, what="stdout")
    terms = {term.code: term for term in found.terms}
    assert {"gateway", "delivery", "attention", "sampling", "rest"} <= terms.keys()
    assert sum(term.seconds for term in found.terms) == pytest.approx(found.token_s)
    engine_s = [t.engine_token_s for one in found.rounds for t in one]
    assert all(seconds is not None and seconds > 0 for seconds in engine_s)
    assert Store(tmp_path / "measurements-1.sqlite").attribution("explain-1") == found
