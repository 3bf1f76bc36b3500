"""vLLM: a plan becomes words that the version understands, a log what was really done."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import builders
import pooled
from workhorse.engines.adapter import adapter_for, adapter_named
from workhorse.engines.report import read_metrics
from workhorse.engines.vllm import log
from workhorse.plan.wish import Wish
from workhorse.units import GIB

VLLM = adapter_named("vllm")
LOGS = Path(__file__).parent.parent / "diagnose"


def lines(name: str) -> list[str]:
    return (LOGS / name).read_text(encoding="utf-8").splitlines()


def words_after(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_every_word_is_an_option_of_the_version_that_gets_it() -> None:
    planned = pooled.plan(pooled.vllm())
    start = VLLM.launch(planned, 4711)
    options = [word for word in start.argv[3:] if word.startswith("--")]
    known = set(planned.engine.knows)
    negated = {option.replace("--", "--no-", 1) for option in known}
    assert [word for word in options if word not in known | negated] == []
    assert start.argv[:3] == planned.engine.command


def test_a_cpu_gets_its_pool_in_bytes_its_threads_and_no_compiler() -> None:
    planned = pooled.plan(pooled.vllm(), wish=Wish(context_tokens=2048, slots=3))
    start = VLLM.launch(planned, 1)
    assert planned.pool is not None
    assert int(words_after(start.argv, "--kv-cache-memory-bytes")) == planned.pool.kv_bytes
    assert words_after(start.argv, "--max-num-seqs") == "3"
    assert words_after(start.argv, "--max-model-len") == "2048"
    assert "--enforce-eager" in start.argv
    assert "--gpu-memory-utilization" not in start.argv
    assert start.env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1,2"
    assert start.env["VLLM_NO_USAGE_STATS"] == "1"
    assert start.memory_nodes is None


def test_an_older_cpu_build_is_told_whole_gibibytes() -> None:
    wish = Wish(context_tokens=32768, slots=64)
    planned = pooled.plan(pooled.vllm("0.9.2"), wish=wish, shape=pooled.model(layers=16))
    start = VLLM.launch(planned, 1)
    assert planned.pool is not None
    assert "--kv-cache-memory-bytes" not in start.argv
    assert int(start.env["VLLM_CPU_KVCACHE_SPACE"]) == -(-planned.pool.kv_bytes // GIB) > 1


@pytest.mark.parametrize(
    ("version", "has", "has_not", "variable"),
    [
        ("0.9.2", ("--swap-space", "--no-enable-prefix-caching"), "--attention-backend", True),
        ("0.19.1", ("--attention-backend", "--enable-prefix-caching"), "--swap-space", False),
    ],
)
def test_options_that_came_and_went_on_a_v100(
    version: str, has: tuple[str, ...], has_not: str, variable: bool
) -> None:
    planned = pooled.plan(pooled.vllm(version, on_card=True), builders.gpu())
    start = VLLM.launch(planned, 1)
    assert set(has) <= set(start.argv)
    assert has_not not in start.argv
    assert ("VLLM_ATTENTION_BACKEND" in start.env) is variable
    assert words_after(start.argv, "--dtype") == "float16"
    assert start.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert planned.pool is not None
    assert planned.pool.attention == ("XFORMERS" if variable else "TRITON_ATTN")
    if variable:
        # The V0 engine reads a prompt in one piece, so a step must hold the whole context.
        assert "--no-enable-chunked-prefill" in start.argv
        assert planned.batch_tokens >= planned.context_tokens


def test_a_newer_card_chooses_its_own_attention_and_keeps_bfloat16() -> None:
    card = replace(builders.gpu(), compute_capability=(9, 0), name="H100")
    planned = pooled.plan(pooled.vllm("0.19.1", on_card=True), card)
    start = VLLM.launch(planned, 1)
    assert words_after(start.argv, "--dtype") == "bfloat16"
    assert "--attention-backend" not in start.argv
    share = float(words_after(start.argv, "--gpu-memory-utilization"))
    assert share == pytest.approx(0.8, abs=0.001)


def test_what_it_compiles_lies_in_its_own_environment() -> None:
    start = VLLM.launch(pooled.plan(pooled.vllm()), 1)
    home = "/engines/vllm-0.32.0/"
    kept = [name for name in start.env if name.endswith(("_ROOT", "_DIR", "HF_HOME"))]
    assert len(kept) == 5
    assert all(start.env[name].startswith(home) for name in kept)


def test_nothing_of_the_users_comes_before_its_own_packages(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()  # a clone of it in the folder that the service starts from
    (tmp_path / "vllm/__main__.py").write_text("print('not the environment')")
    told = VLLM.launch(pooled.plan(pooled.vllm()), 1).env
    for env in ({"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/none", **told}, told):
        ran = subprocess.run(
            [sys.executable, "-m", "vllm"], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert "No module named vllm" in ran.stderr


# In another Python, as the engine loads it: asked so, does it answer itself or pass it on?
LAYER = """
import asyncio, importlib, json, sys
module, name = sys.argv[1].rsplit(".", 1)
layer = getattr(importlib.import_module(module), name)

async def inner(scope, receive, send):
    await send({"type": "inner"})

async def ask(scope):
    said = []
    async def send(message):
        said.append(message.get("status", message["type"]))
    scope["headers"] = [(n.encode(), v.encode()) for n, v in scope.get("headers", ())]
    await layer(inner)(scope, None, send)
    return said[0]

print(json.dumps([asyncio.run(ask(scope)) for scope in json.loads(sys.argv[2])]))
"""


def test_without_the_key_every_route_but_health_is_refused() -> None:
    start = VLLM.launch(pooled.plan(pooled.vllm()), 1)
    right, wrong = ("authorization", "Bearer k3y"), ("authorization", "Bearer k3")

    def answers(key: str) -> list[object]:
        asked = [
            {"type": "lifespan"},
            {"type": "http", "path": "/health"},
            {"type": "http", "path": "/invocations", "headers": [right]},
            {"type": "http", "path": "/invocations"},
            {"type": "http", "path": "/health/../invocations", "headers": [wrong]},
            {"type": "http", "path": "/score", "headers": [wrong, right]},
            {"type": "websocket", "path": "/v1/realtime"},
        ]
        words = [words_after(start.argv, "--middleware"), json.dumps(asked)]
        env = {**start.env, str(start.key_variable): key}
        command = [sys.executable, "-c", LAYER, *words]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found: list[object] = json.loads(ran.stdout)
        return found

    assert answers("k3y") == [*["inner"] * 3, 401, 401, 401, "websocket.close"]
    assert answers("") == ["inner"] * 7
    old = VLLM.launch(pooled.plan(pooled.vllm("0.9.2")), 1)
    assert "--middleware" not in old.argv
    assert old.env["PYTHONPATH"] == ""


def test_the_log_of_a_cpu_start_says_what_was_done() -> None:
    seen = VLLM.observe(lines("healthy/vllm_cpu_start.log"))
    assert (seen.device, seen.dtype, seen.version) == ("cpu", "bfloat16", "0.32.0")
    assert (seen.slots, seen.context_tokens, seen.kv_tokens) == (16, 2048, 524288)
    assert seen.fell_back == ()


def test_the_log_of_a_v100_says_what_was_taken_instead() -> None:
    seen = VLLM.observe(lines("healthy/vllm_v100.log"))
    assert (seen.device, seen.attention, seen.kv_tokens) == ("gpu", "XFormers", 91008)
    assert any("FlashAttention-2" in line for line in seen.fell_back)


def test_blocks_of_the_v0_engine_are_counted_in_tokens() -> None:
    seen = log.observe(["INFO executor_base.py:113] # cuda blocks: 5688, # CPU blocks: 0"])
    assert (seen.device, seen.kv_tokens) == ("gpu", 5688 * 16)


def test_a_start_as_planned_finds_nothing() -> None:
    planned = pooled.plan(pooled.vllm(), wish=Wish(context_tokens=2048, slots=16))
    assert VLLM.judge(planned, lines("healthy/vllm_cpu_start.log")) == ()


def test_a_log_without_a_load_is_told() -> None:
    (found,) = VLLM.judge(pooled.plan(pooled.vllm()), ["nothing"])
    assert found.code == "verify.nothing_reported"


def test_a_card_that_is_not_used_is_a_blocker() -> None:
    planned = pooled.plan(pooled.vllm("0.19.1", on_card=True), builders.gpu())
    found = VLLM.judge(planned, lines("healthy/vllm_cpu_start.log"))
    assert {f.code: f.level for f in found}["verify.layers_on_cpu"] == "blocker"
    assert {"verify.dtype_differs", "verify.slots_differ"} <= {f.code for f in found}


def test_another_attention_than_planned_is_a_warning() -> None:
    card = builders.gpu()
    wish = Wish(context_tokens=4096, slots=16)
    old = pooled.plan(pooled.vllm("0.9.2", on_card=True), card, wish=wish)
    assert VLLM.judge(old, lines("healthy/vllm_v100.log")) == ()
    newer = pooled.plan(pooled.vllm("0.19.1", on_card=True), card, wish=wish)
    codes = [f.code for f in VLLM.judge(newer, lines("healthy/vllm_v100.log"))]
    assert codes == ["verify.attention_differs"]


def test_a_pool_that_is_smaller_than_all_requests_is_noted() -> None:
    planned = pooled.plan(pooled.vllm(), wish=Wish(context_tokens=2048, slots=16))
    small = [line.replace("524,288", "6,144") for line in lines("healthy/vllm_cpu_start.log")]
    (found,) = VLLM.judge(planned, small)
    assert (found.code, found.level) == ("verify.pool_small", "note")
    assert "3 requests" in found.seen.en


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing_model", "not where the engine looks"),
        ("unknown_architecture", "does not know the model's architecture"),
        ("removed_flag", "--swap-space"),
        ("cpu_memory", "larger share of a node's memory"),
        ("context_too_long", "More context was asked for"),
        ("too_many_processes", "cannot be divided"),
    ],
)
def test_the_cause_of_a_failed_start(name: str, words: str) -> None:
    cause = VLLM.explain(lines(f"provoked/vllm_{name}.log"))
    assert cause is not None
    assert words in cause.what.en


def test_an_error_that_nobody_knows_is_told_in_its_own_words() -> None:
    cause = VLLM.explain(
        [
            "(EngineCore pid=7) ERROR 11-30 09:14:58 [core.py:9] ValueError: a strange thing",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        ]
    )
    assert cause is not None
    assert cause.what.en == "ValueError: a strange thing"
    assert VLLM.explain(["INFO: all is well"]) is None


def test_its_metrics_are_read_in_the_words_of_every_engine() -> None:
    assert VLLM.metrics is not None
    load = read_metrics(
        "# HELP vllm:num_requests_running x\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_waiting{engine="0"} 1.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        'vllm:prompt_tokens_total{engine="0"} 30.0\n'
        'vllm:prompt_tokens_total{engine="1"} 12.0\n'
        "broken line\n",
        VLLM.metrics,
    )
    assert (load.running, load.waiting, load.kv_share) == (2, 1, 0.25)
    assert (load.prompt_tokens, load.generated_tokens) == (42, None)


def test_its_first_answer_is_judged_like_every_engines() -> None:
    planned = pooled.plan(pooled.vllm())
    asked = VLLM.first_question(planned)
    assert (asked.path, asked.body["model"]) == ("/v1/completions", "tiny")
    choice = {"text": "a good tale", "token_ids": [5, 6, 7]}
    usage = {"prompt_tokens": 110}
    assert VLLM.judge_answer(planned, {"choices": [choice], "usage": usage}) == ()
    worse = {"text": "!!!!!!!!"}
    (found,) = VLLM.judge_answer(planned, {"choices": [worse], "usage": usage})
    assert found.code == "verify.answer_repeats"
    (found,) = VLLM.judge_answer(planned, {"error": "no"})
    assert found.code == "verify.answer_empty"


def test_an_embedding_model_is_asked_for_a_vector() -> None:
    planned = replace(pooled.plan(pooled.vllm()), embeddings=True)
    assert VLLM.first_question(planned).path == "/v1/embeddings"
    assert VLLM.judge_answer(planned, {"data": [{"embedding": [0.5, 1.0]}]}) == ()


def test_a_plan_for_another_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="pool"):
        VLLM.launch(replace(pooled.plan(pooled.vllm()), pool=None), 1)


def test_the_adapter_follows_the_build() -> None:
    assert adapter_for(pooled.vllm()) is VLLM
    assert adapter_for(builders.EMBEDDED).engine == "llama.cpp"
