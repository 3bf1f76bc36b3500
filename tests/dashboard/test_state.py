"""The state document, the history's route and the page's files, without a browser."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from scenes import ENDED, MODEL, Owner, Scene, alarmed, fresh, healthy, served

from workhorse.codec import to_line
from workhorse.records import EngineReading, Reading
from workhorse.serve.backend import Served
from workhorse.serve.dashboard.routes import OPEN_TO_ALL, page_files
from workhorse.serve.points import UNITS
from workhorse.serve.state import Known, service_state, sorted_alarms
from workhorse.serve.told import tell_machine, tell_plan

LARGEST_PAGE_BYTES = 100_000


def state_of(scene: Scene, **more: Any) -> Any:
    state = service_state(
        scene.known(),
        at_unix_s=100.0,
        since_unix_s=40.0,
        reading=scene.reading,
        alarms=scene.alarms,
        usage=scene.usage,
        **more,
    )
    return json.loads(to_line(state))


# --- the document --------------------------------------------------------------------------------


def test_it_says_what_runs_and_why(tmp_path: Path) -> None:
    scene = healthy(tmp_path)
    assert scene.plan is not None
    state = state_of(scene)
    (plan,) = state["about"]["plans"]
    assert [s["value"] for s in plan["settings"]] == [r.value for r in scene.plan.reasons]
    assert all(s["label"]["zh"] and s["because"]["en"] for s in plan["settings"])
    assert [r["option"] for r in plan["rejected"]] == [r.option for r in scene.plan.rejected]
    card = next(device for device in plan["devices"] if device["name"]["en"] == "GPU 0")
    assert card["planned_bytes"] == sum(item["n_bytes"] for item in card["items"])
    assert card["holds_bytes"] == scene.machine.gpus[0].memory_total_bytes
    forecast, ceiling = plan["decode_tokens_per_s"], plan["ceiling_tokens_per_s"]
    assert forecast["low"] < forecast["value"] < forecast["high"] <= ceiling["value"]
    (engine,) = state["engines"]
    assert (engine["state"], engine["slots"], engine["restarts"]) == ("ready", 4, 1)
    assert engine["measured"]["decode_tokens_per_s"] == pytest.approx(forecast["value"] * 1.04)
    assert engine["now"]["slots"] == 4


def test_a_reader_is_sent_the_plan_once(tmp_path: Path) -> None:
    scene = healthy(tmp_path)
    revision = state_of(scene)["revision"]
    assert state_of(scene, reader_knows=revision)["about"] is None
    assert scene.plan is not None
    scene.plan = replace(scene.plan, threads=3)
    assert state_of(scene, reader_knows=revision)["about"] is not None


def test_before_anything_is_known(tmp_path: Path) -> None:
    state = state_of(fresh(tmp_path))
    assert (state["state"], state["reading"], state["alarms"]) == ("planning", None, [])
    assert state["about"]["plans"] == [None]
    nobody = service_state([], at_unix_s=1, since_unix_s=0)
    assert (nobody.state, nobody.engines) == ("planning", ())


def test_a_reason_is_told_only_while_it_holds(tmp_path: Path) -> None:
    scene = healthy(tmp_path)
    scene.reason = ENDED
    assert state_of(scene)["engines"][0]["reason"] is None
    scene.backend.state = "restarting"
    assert state_of(scene)["engines"][0]["reason"]["zh"] == ENDED.zh


def test_two_engines_of_one_model_have_their_own_readings() -> None:
    def now(generating: int) -> EngineReading:
        return EngineReading(
            MODEL, "ready", 0, generating, 0, 4, None, None, None, None, None, None
        )

    known = [Known(Served(MODEL, Owner("http://x"))), Known(Served(MODEL, Owner("http://y")))]
    state = service_state(
        known, at_unix_s=1, since_unix_s=0, reading=Reading(1.0, (now(1), now(2)))
    )
    assert [e.now and e.now.generating for e in state.engines] == [1, 2]


def test_alarms_worst_first_and_those_over_last(tmp_path: Path) -> None:
    alarms = sorted_alarms(alarmed(tmp_path).alarms)
    assert [(a.finding.code, a.over_unix_s is None) for a in alarms] == [
        ("engine.garbage", True),
        ("gpu.power-capped", True),
        ("gpu.hot", False),
    ]


def test_a_machine_with_nothing_known_is_told_all_the_same(tmp_path: Path) -> None:
    scene = healthy(tmp_path)
    memory = replace(scene.machine.memory, total_bytes=None)
    limits = replace(scene.machine.limits, memory_bytes=None)
    bare = replace(scene.machine, memory=memory, limits=limits, gpus=(), driver=None)
    assert "—" in {fact.value.en for fact in tell_machine(bare)}
    assert scene.plan is not None
    assert {device.holds_bytes for device in tell_plan(scene.plan, bare).devices} == {None}


# --- the routes ----------------------------------------------------------------------------------


async def test_state_and_history_are_served(tmp_path: Path) -> None:
    scene = healthy(tmp_path)
    async with served(scene) as url, aiohttp.ClientSession(url) as http:
        async with http.get("/workhorse/state") as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            state = await answer.json()
        async with http.get(f"/workhorse/state?known={state['revision']}") as answer:
            assert (await answer.json())["about"] is None
        since = state["at_unix_s"] - 900
        asked = f"/workhorse/history?figure=waiting&figure=card_power_w&since={since}&points=100"
        async with http.get(asked) as answer:
            past = await answer.json()
    assert state["events"][0]["state"] == "ready"
    assert state["usage"]["keys"][0]["name"] == "wiki-search"
    assert {(s["figure"], s["unit"]) for s in past["series"]} == {
        ("waiting", "requests"),
        ("card_power_w", "W"),
    }
    assert past["step_s"] == 10
    assert all(0 < len(s["points"]) <= 101 for s in past["series"])


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("", "figure="),
        ("figure=nothing", "nothing"),
        ("&".join(["figure=waiting"] * 21), "1 to 20"),
        ("figure=waiting&since=yesterday", "yesterday"),
        ("figure=waiting&since=nan", "nan"),
        ("figure=waiting&since=1e400", "1e400"),
        ("figure=waiting&since=20&until=10", "before"),
        ("figure=waiting&points=0", "points"),
    ],
)
async def test_a_wrong_question_to_the_history(tmp_path: Path, query: str, named: str) -> None:
    async with (
        served(fresh(tmp_path)) as url,
        aiohttp.ClientSession(url) as http,
        http.get(f"/workhorse/history?{query}") as answer,
    ):
        assert answer.status == 400
        assert named in (await answer.json())["error"]["message"]


async def test_a_service_whose_history_cannot_be_read_goes_on(tmp_path: Path) -> None:
    scene = fresh(tmp_path)
    (tmp_path / "service-1.sqlite").write_bytes(b"no database" * 999)
    async with served(scene) as url, aiohttp.ClientSession(url) as http:
        async with http.get("/workhorse/state") as answer:
            assert answer.status == 200
        async with http.get("/workhorse/history?figure=waiting") as answer:
            assert answer.status == 503
            assert "move it away" in (await answer.json())["error"]["message"]


async def test_the_page_may_only_do_what_it_must(tmp_path: Path) -> None:
    async with served(fresh(tmp_path)) as url, aiohttp.ClientSession(url) as http:
        for path in ("/", "/dashboard/page.js", "/dashboard/page.css", "/dashboard/icon.svg"):
            async with http.get(path) as answer:
                assert answer.status == 200
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "require-trusted-types-for 'script'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/dashboard/nothing.js", "/dashboard/..%2Froutes.py", "/dashboard/routes.py"):
            async with http.get(path) as answer:
                assert answer.status == 404


# --- the files -----------------------------------------------------------------------------------


def scripts() -> dict[str, str]:
    return {name: body.decode() for name, body in page_files().items() if name.endswith(".js")}


def test_the_page_is_small_and_asks_nobody_else() -> None:
    files = {name: body for name, body in page_files().items() if name != "grafana.json"}
    assert sum(map(len, files.values())) < LARGEST_PAGE_BYTES
    for name, body in files.items():
        links = re.findall(rb"https?://[^\s\"']+", body)
        assert set(links) <= {b"http://www.w3.org/2000/svg"}, name
    assert {path for path in OPEN_TO_ALL if "state" in path} == set()


def test_nothing_becomes_markup() -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|Function\("
    assert [name for name, body in scripts().items() if re.search(ways, body)] == []


def test_no_script_is_long() -> None:
    assert {n: b.count("\n") for n, b in scripts().items() if b.count("\n") > 400} == {}


def test_every_word_is_there_in_both_languages() -> None:
    files = {name: body.decode() for name, body in page_files().items()}
    table = files["words.js"].split("const WORDS = {")[1].split("\n};")[0]
    known = dict(re.findall(r"^  (\w+): (\[.*\]),$", table, flags=re.MULTILINE))
    assert len(known) == table.strip().count("\n") + 1
    for key, both in known.items():
        english, chinese = json.loads(both)
        assert english, key
        assert chinese, key
        places = [sorted(re.findall(r"\{\d\}", words)) for words in (english, chinese)]
        assert places[0] == places[1], key
    body = "".join(files[name] for name in files if name.endswith((".js", ".html")))
    used = set(re.findall(r"\bsay\(\"(\w+)\"", body)) | set(re.findall(r'data-say="(\w+)"', body))
    assert used - known.keys() == set()
    ways = "".join(body for name, body in files.items() if name != "words.js")
    spelt = set(re.findall(r"\w+", ways))
    prefixed = {key for key in known if key.startswith(("say_", "range_", "template_"))}
    states = {"planning", "starting", "ready", "restarting", "given_up", "stopped"}
    states |= {"reloading", "draining"}
    assert known.keys() - spelt - prefixed - states == set()


def test_every_curve_is_a_figure_of_the_history() -> None:
    listed = scripts()["curves.js"].split("const FIGURES = [")[1].split("];")[0]
    figures = re.findall(r'"(\w+)"', listed)
    assert figures
    assert set(figures) <= UNITS.keys()
