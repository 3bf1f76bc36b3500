"""`workhorse bench` of a service that `up` runs: it knows the plan that it measures."""

import json
from pathlib import Path

import aiohttp
import pytest
from service_inside import serving
from service_process import StartService

from workhorse.bench.own_service import PLANS_PATH, decided_by, own_file
from workhorse.bench.service import Service as Asked
from workhorse.codec import from_json
from workhorse.config import Places
from workhorse.records import Measurement
from workhorse.run.run_file import path_of, read_service_file

pytestmark = pytest.mark.timeout(600)  # a service starts in seconds, on a busy machine in more

SHORT = ("--repeats", "1", "--json")


def test_its_plan_is_kept_and_the_report_has_the_promise(start_service: StartService) -> None:
    service = start_service("--gap-ms", "1")
    done = service.command("bench", service.url, *SHORT)
    assert done.returncode == 0, done.stderr
    (found,) = from_json(tuple[Measurement, ...], done.stdout, what="stdout")
    plan, machine = found.conditions.plan, found.conditions.machine
    assert plan is not None
    assert machine is not None
    assert (plan.model_name, plan.engine.version) == ("small", "llama-server 1")
    assert machine.memory.bandwidths  # of before the engine ran: a bench does not measure them
    report = service.command("report", "1")
    assert report.returncode == 0, report.stderr
    assert "ceiling" in report.stdout.lower()
    assert "predicted" in report.stdout.lower()


async def test_only_a_service_that_is_surely_ours_is_asked(
    tmp_path: Path, small_model: Path
) -> None:
    where = Places(tmp_path)
    async with serving(tmp_path, small_model) as service, aiohttp.ClientSession() as http:
        asked = Asked(service.url, "small", {})
        found = await decided_by(http, asked, where)
        assert found is not None
        assert found.plan == service.engines[0].plan
        others = (
            Asked(service.url, "another model", {}),
            Asked(service.url, None, {}),
            Asked(f"http://192.0.2.1:{service.port}", "small", {}),
            Asked("http://127.0.0.1:1", "small", {}),
        )
        assert [await decided_by(http, one, where) for one in others] == [None] * len(others)
        elsewhere = Places(tmp_path / "another user")
        assert await decided_by(http, asked, elsewhere) is None
        # A file that a dead service left says nothing of who is there now.
        path = path_of(where.run, service.port or 0)
        file = read_service_file(path)
        assert file is not None
        document = json.loads(path.read_text())
        document["service"]["start_ticks"] += 1
        path.write_text(json.dumps(document))
        assert own_file(where, service.url) is None
        assert await decided_by(http, asked, where) is None


async def test_plans_are_for_the_user_who_runs_it_alone(tmp_path: Path, small_model: Path) -> None:
    async with (
        serving(tmp_path, small_model) as service,
        aiohttp.ClientSession(service.url) as http,
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with http.get(PLANS_PATH, headers=headers) as answer:
                assert answer.status == 403
        right = {"Authorization": f"Bearer {service.written.token}"}
        async with http.get(PLANS_PATH, headers=right) as answer:
            (document,) = await answer.json()
        assert document["model_name"] == "small"
        assert document["plan"]["model_path"] == str(small_model)
