"""vLLM over several machines: one command each, and where it is known not to start."""

from dataclasses import replace

import pytest

import pooled
from workhorse.errors import AppError
from workhorse.fleet.vllm_nodes import by_hand, launches
from workhorse.records import Plan

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def on_cpu() -> Plan:
    return pooled.plan(pooled.vllm())


def word_after(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_each_machine_has_its_command() -> None:
    starts = launches(on_cpu(), ADDRESSES, "tensor", heads=24, port=8001)
    assert [word_after(one.argv, "--node-rank") for one in starts] == ["0", "1", "2"]
    for one in starts:
        assert word_after(one.argv, "--nnodes") == "3"
        assert word_after(one.argv, "--master-addr") == "10.0.0.1"
        assert word_after(one.argv, "--tensor-parallel-size") == "3"
        known = {word for word in one.argv if word.startswith("--")}
        assert known <= {*pooled.vllm().knows, "--model"}, "words of its own help"
    assert ["--headless" in one.argv for one in starts] == [False, True, True]
    assert "vllm.entrypoints.openai.api_server" in starts[0].argv
    at = starts[1].argv.index("vllm.entrypoints.cli.main")
    assert starts[1].argv[at + 1] == "serve"
    assert by_hand(starts)[1].en.startswith("on 10.0.0.2: ")


def test_what_is_known_not_to_work() -> None:
    with pytest.raises(AppError, match="crashes with pipeline parallel on CPUs"):
        launches(on_cpu(), ADDRESSES, "pipeline", heads=24, port=8001)
    with pytest.raises(AppError, match="32 attention heads cannot be shared by 3 parts"):
        launches(on_cpu(), ADDRESSES, "tensor", heads=32, port=8001)
    old = replace(on_cpu(), engine=pooled.vllm("0.9.2"))
    with pytest.raises(AppError, match=r"0\.9\.2 .*runs on one machine alone"):
        launches(old, ADDRESSES, "tensor", heads=24, port=8001)
