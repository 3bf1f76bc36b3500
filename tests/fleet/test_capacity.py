"""How many boxes a load takes: known limits, the formulae beside it, and what a user is told."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from captured_fleet import CAPTURES, machine_of

from workhorse.cli import main
from workhorse.codec import to_json
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE
from workhorse.fleet.boxes import boxes_of_status
from workhorse.fleet.capacity import Box, Boxes, Goals, Lengths, Load, assess, interval
from workhorse.fleet.queue_formulae import Moments, erlang_c, fleet_line, line
from workhorse.fleet.replica_speeds import Speeds, measured_speeds, steps
from workhorse.fleet.sizing import most_load, needed, smallest
from workhorse.fleet.status import FleetStatus, NodeStatus, ReplicaStatus

QUICK = Speeds(8, 2000.0, steps({1: 0.012, 8: 0.024}, 8), 512)
BOX = Box("quick", (QUICK,), measured=True)
LOAD = Load(Lengths(500, 1500), Lengths(200, 600), requests_per_s=2.0)
GOALS = Goals(3.0, 5.3)


def test_lengths_have_the_mean_and_the_percentile_that_were_told() -> None:
    drawn = Lengths(800, 2400).draw(np.random.default_rng(1), 400_000)
    assert drawn.mean() == pytest.approx(800, rel=0.02)
    assert np.quantile(drawn, 0.95) == pytest.approx(2400, rel=0.02)
    assert drawn.var() == pytest.approx(Lengths(800, 2400).moments.variance, rel=0.1)
    assert Lengths(7, 7).draw(np.random.default_rng(1), 3).tolist() == pytest.approx([7, 7, 7])


def test_the_formulae_are_those_of_the_books() -> None:
    assert erlang_c(1, 0.8) == pytest.approx(0.8)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)  # 2ρ² / (1 + ρ) with ρ = 1/2
    equal = line(1, 0.7, 1.0, 0.0)  # M/D/1 waits half of M/M/1
    assert equal.mean_wait_general_s == pytest.approx(0.7 / (2 * 0.3))
    assert equal.mean_wait_s == pytest.approx(0.7 / 0.3)
    assert line(4, 5.0, 1.0, 1.0).mean_wait_s == float("inf")


def test_a_slot_of_the_formulae_is_one_at_full_load() -> None:
    found = fleet_line([(QUICK, 2)], 0.1, Moments(500, 0), Moments(201, 0))
    assert found.servers == 16
    assert found.service_s == pytest.approx(8 * 500 / 2000 + 200 * 0.024)
    assert found.service_variation == pytest.approx(0)


def test_more_load_takes_more_boxes_and_they_hold_it() -> None:
    found = [needed(BOX, LOAD.times(times), GOALS, seeds=2) for times in (1, 8)]
    counts = [one.count or 0 for one in found]
    assert 0 < counts[0] < counts[1] <= 8 * counts[0] + 1
    for one in found:
        assert one.outcome is not None
        assert one.outcome.holds
        assert one.at_least is not None
        assert one.at_least <= (one.count or 0)
        assert one.outcome.formulae.utilisation < 1


def test_what_even_an_idle_box_does_too_slowly_takes_no_search() -> None:
    slow = Box("slow", (Speeds(4, 100.0, (0.05,) * 4, 32),), measured=True)
    assert needed(slow, LOAD, GOALS).limit == "prefill"
    assert needed(BOX, LOAD, Goals(3.0, 200.0)).limit == "decode"
    assert needed(slow, LOAD, GOALS).count is None


def test_the_limit_is_named() -> None:
    few = (Boxes(BOX, 1),)
    over = assess(few, LOAD.times(10), GOALS, seeds=2, counted=2000)
    assert (over.holds, over.limit) == (False, "slots")
    assert over.refused_share.value > 0.3
    slow_prompts = Box("p40", (Speeds(8, 300.0, (0.02,) * 8, 128),), measured=True)
    reading = assess((Boxes(slow_prompts, 9),), LOAD, GOALS, seeds=2, counted=2000)
    assert reading.limit == "prefill"
    crowded = Box("many slots", (Speeds(16, 4000.0, steps({1: 0.02, 16: 0.4}, 16), 512),), True)
    writing = assess(
        (Boxes(crowded, 2),), LOAD.times(0.15), Goals(9.0, 15.0), seeds=2, counted=2000
    )
    assert writing.limit == "decode"


def test_how_much_a_fleet_takes_is_what_it_holds() -> None:
    boxes = (Boxes(BOX, 3),)
    most = most_load(boxes, LOAD, GOALS)
    assert most is not None
    assert assess(boxes, LOAD.times(most.share * 0.8), GOALS, seeds=2).holds
    assert not assess(boxes, LOAD.times(most.share * 1.3), GOALS, seeds=2).holds


def test_users_who_wait_ask_less_when_answers_are_slow() -> None:
    load = Load(Lengths(500, 1500), Lengths(200, 600), users=40, think_s=20.0)
    few, many = (
        assess((Boxes(BOX, count),), load, GOALS, seeds=2, counted=2000) for count in (1, 8)
    )
    assert few.requests_per_s.value < many.requests_per_s.value <= 40 / 20.0
    assert few.refused_share.value == 0  # forty users are never more than the line takes


def test_the_interval_over_seeds_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.high - found.value == pytest.approx(4.303 / 3**0.5)
    assert interval([0.0, 1.0]).low == 0.0


def test_the_smallest_good_number_is_found() -> None:
    assert [smallest(lambda n, m=m: n >= m, 1, 1000) for m in (1, 2, 17, 100)] == [1, 2, 17, 100]  # type: ignore[misc]
    assert smallest(lambda n: n > 5000, 1, 1000) is None


# --- where the speeds come from ------------------------------------------------------------------


def replica(name: str, node: str, kind: str, prefill: float | None, total: float) -> ReplicaStatus:
    return ReplicaStatus(
        name=name,
        node=node,
        model_name="m",
        state="ready",
        reason=None,
        restarts=0,
        generating=0,
        slots=4,
        context_tokens=8192,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=40.0,
        total_tokens_per_s=total,
        measured=True,
        kind=kind,
        file="m.gguf",
    )


STATUS = FleetStatus(
    None,
    tuple(
        NodeStatus(name, f"10.0.0.{n}", "p40", n == 1, True, False)
        for n, name in enumerate("abc", 1)
    ),
    (
        replica("a-gpu0", "a", "p40", 500.0, 100.0),
        replica("b-gpu0", "b", "p40", 700.0, 80.0),
        replica("c-gpu0", "c", "v100", 900.0, 120.0),
        replica("c-gpu1", "c", "v100", None, 120.0),
    ),
)


def test_measured_replicas_of_a_kind_are_one_box_with_their_mean_speeds() -> None:
    found = boxes_of_status(STATUS)
    assert found.left_out == ("c-gpu1",)
    assert [(one.box.kind, one.count) for one in found.boxes] == [("p40", 2), ("v100", 1)]
    (speeds,) = found.boxes[0].box.replicas
    assert speeds.step_s[-1] == pytest.approx((4 / 100 + 4 / 80) / 2)
    assert speeds.prefill_tokens_per_s == pytest.approx(2 / (1 / 500 + 1 / 700))


@pytest.mark.parametrize("slots", [0, -1, 10**9])
def test_a_status_may_say_anything(slots: int) -> None:
    assert measured_speeds(slots, 100.0, 10.0, 20.0) is None


def test_one_stream_alone_promises_nothing_of_several() -> None:
    found = measured_speeds(4, 100.0, 10.0, None)
    assert found is not None
    assert 4 / found.step_s[-1] == pytest.approx(10.0)  # together as fast as one


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def status(tmp_path: Path) -> str:
    path = tmp_path / "status.json"
    path.write_text(to_json(STATUS))
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["fleet", "plan", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_saved_status_is_planned_with(
    status: str, language: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--users", "60", "--rate", "6/h", "--prompt", "300", "--output", "100")
    code, out, err = told(capsys, *words, "--status", status, "--seeds", "2", "--lang", language)
    assert code == EXIT_GOOD
    assert "c-gpu1" in err
    assert "Erlang C" in out
    assert ("It holds" if language == "en" else "满足目标") in out


def test_too_many_users_are_told_so_with_the_number_of_boxes(
    status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rate", "5/s", "--prompt", "300", "--output", "100:100", "--seeds", "2")
    code, out, _ = told(capsys, *words, "--status", status, "--json")
    answer: dict[str, Any] = json.loads(out)
    assert code == EXIT_NO
    assert answer["outcome"]["holds"] is False
    assert answer["most"]["share"] < 1
    alone, beside = (
        {one["box"]["kind"]: one["count"] for one in answer[k]} for k in ("alone", "beside")
    )
    assert all(0 < beside[kind] < alone[kind] for kind in alone)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "not told how much"),
        (("--users", "5"), "not told how much"),
        (("--think", "5s"), "not told how much"),
        (("--users", "5", "--rate", "1/h", "--think", "5s"), "two kinds of users"),
        (("--rate", "1/s", "--machine", "x.json"), "needs a MODEL"),
        (("--rate", "1/s", "--status", "/not/there"), "cannot be read"),
        (("m.gguf", "--rate", "1/s"), "no machine"),
    ],
)
def test_a_mistake_is_told(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, *words)
    assert code == EXIT_USAGE
    assert said in err


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "2"),
        ("--rate", "0/h"),
        ("--rate", "9999999/s"),
        ("--rate", "1/s", "--prompt", "0"),
        ("--rate", "1/s", "--prompt", "100:50"),
        ("--rate", "1/s", "--output", "100:1000"),
        ("--rate", "1/s", "--speed", "0"),
        ("--rate", "1/s", "--seeds", "1"),
        ("--rate", "1/s", "--think", "0s"),
        ("--rate", "1/s", "--machine", "a.json=0"),
        ("--rate", "1/s", "--first-token", "soon"),
    ],
)
def test_a_word_that_is_none_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "plan", *words])
    assert ended.value.code == EXIT_USAGE
    assert words[-1].split("=")[-1] in capsys.readouterr().err


def test_a_broken_status_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.json"
    for text in ("", "[]", '{"url": null, "nodes": 3, "replicas": []}'):
        path.write_text(text)
        code, _, err = told(capsys, "--rate", "1/s", "--status", str(path))
        assert code != EXIT_GOOD
        assert "s.json" in err


@pytest.fixture
def small_model(tmp_path: Path) -> str:
    """A llama-shaped file of two layers."""
    path, width = tmp_path / "small.gguf", 256
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(32)
    names = ["token_embd", "output"]
    names += [f"blk.{n}.{part}" for n in (0, 1) for part in ("attn_q", "ffn_up", "ffn_down")]
    for name in names:
        rows = 32 if name in ("token_embd", "output") else width
        writer.add_tensor(f"{name}.weight", np.zeros((rows, width), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_machines_that_are_not_here_are_planned_with(
    small_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "probed.json"
    record.write_text(to_json(machine_of("t4")))  # as `probe --json` prints it
    machines = [f"{CAPTURES / 'p40_box.json'}=2", str(record), str(CAPTURES / "avx_only.json")]
    words = [word for machine in machines for word in ("--machine", machine)]
    load = ("--rate", "1/s", "--prompt", "100", "--output", "50", "--seeds", "2", "--json")
    code, out, err = told(capsys, small_model, *words, *load)
    answer = json.loads(out)
    assert code == EXIT_GOOD
    assert [one["box"]["kind"] for one in answer["alone"]] == ["p40_box: small", "probed: small"]
    assert [one["count"] for one in answer["outcome"]["boxes"]] == [2]
    assert "avx_only.json" in err  # it has no engine, and says so
    code, _, err = told(capsys, small_model, "--machine", str(CAPTURES / "avx_only.json"), *load)
    assert code == EXIT_NO
    assert "avx2" in err
