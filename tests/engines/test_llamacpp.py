"""A plan becomes a command line: exactly, and only in words that the build understands."""

from dataclasses import replace
from pathlib import Path

import pytest

import builders
from workhorse.engines import embedded
from workhorse.engines.find import binary_build, embedded_build
from workhorse.engines.llamacpp import command_line, environment, launch
from workhorse.engines.llamacpp_adapter import LlamaCpp
from workhorse.errors import AppError
from workhorse.plan.planner import make_plan, uuids_of
from workhorse.plan.wish import Wish
from workhorse.records import Plan, Projector


def plan() -> Plan:
    return make_plan(builders.machine(), builders.model(), embedded_build(), Wish())


def test_the_embedded_launcher_understands_every_setting_we_give_it() -> None:
    planned = plan()
    words = launch(planned, 4711).argv[len(planned.engine.command) :]
    asked = embedded.parser().parse_args(list(words))
    assert asked.port == 4711
    assert asked.ctx_size == planned.context_tokens * planned.slots
    assert asked.parallel == planned.slots
    assert (asked.threads, asked.threads_batch) == (planned.threads, planned.threads)
    assert (asked.batch_size, asked.ubatch_size) == (512, 512)
    assert (asked.load_mode, asked.flash_attn, asked.fit) == ("none", "on", "off")
    assert asked.host == "127.0.0.1"
    assert asked.cors_origins == ""


@pytest.mark.parametrize("shared", [True, False])
def test_slots_that_are_saved_keep_what_they_hold(shared: bool) -> None:
    planned = replace(plan(), states_dir="/states", shared_kv=shared)
    words = launch(planned, 4711).argv[len(planned.engine.command) :]
    asked = embedded.parser().parse_args(list(words))
    assert asked.slot_save_path == "/states"
    assert asked.no_cache_idle_slots == shared
    assert "--slot-save-path" not in launch(replace(planned, states_dir=None), 1).argv


EYES = Projector("/m/mmproj.gguf", "eyes", 1000, None, None, None, None, None)


def test_a_projector_is_given_to_the_builds_that_know_it() -> None:
    seeing = replace(plan(), projector=EYES)
    words = launch(seeing, 4711).argv[len(seeing.engine.command) :]
    asked = embedded.parser().parse_args(list(words))
    # Left to itself it would compute on a card that the plan leaves alone.
    assert (asked.mmproj, asked.no_mmproj_offload) == ("/m/mmproj.gguf", True)
    on_card = launch(replace(seeing, gpu_index=0), 4711).argv
    assert on_card[on_card.index("--mmproj") + 1] == "/m/mmproj.gguf"
    assert "--no-mmproj-offload" not in on_card
    older = replace(seeing, engine=replace(seeing.engine, knows=("--model", "--mmproj")))
    assert launch(older, 4711).argv[-2:] == ("--mmproj", "/m/mmproj.gguf")
    oldest = replace(seeing, engine=replace(seeing.engine, knows=("--model",)))
    assert "--mmproj" not in launch(oldest, 4711).argv
    assert "--mmproj" not in launch(plan(), 4711).argv


def test_a_trial_is_understood_too() -> None:
    build = embedded_build()
    start = LlamaCpp().trial(build, Path("/models/small.gguf"), 4711)
    asked = embedded.parser().parse_args(list(start.argv[len(build.command) :]))
    assert (asked.port, asked.parallel, asked.n_gpu_layers) == (4711, 1, 0)


def test_an_older_build_gets_its_own_words() -> None:
    old = replace(
        plan(),
        engine=replace(
            builders.EMBEDDED, knows=("--model", "--port", "--ctx-size", "--no-mmap", "--parallel")
        ),
    )
    argv = launch(old, 1).argv
    assert "--no-mmap" in argv
    assert "--load-mode" not in argv
    assert "--fit" not in argv
    assert "--cors-origins" not in argv


def test_the_environment_holds_what_the_plan_decided() -> None:
    planned = plan()
    added = environment(replace(planned, huge_pages=True, spin="bounded"))
    assert added["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert int(added["GOMP_SPINCOUNT"]) > 0
    # LD_LIBRARY_PATH is there on a system without libgomp, whatever was planned.
    bare = environment(replace(planned, huge_pages=False, spin="default"))
    assert bare.keys() <= {"LD_LIBRARY_PATH"}


def test_threads_that_nap_do_not_poll() -> None:
    planned = plan()
    knows = (*planned.engine.knows, "--poll", "--poll-batch")
    naps = replace(planned, engine=replace(planned.engine, knows=knows, bounded_wait=True))
    argv = launch(naps, 1).argv
    assert argv[argv.index("--poll") + 1] == argv[argv.index("--poll-batch") + 1] == "0"
    assert (
        "--poll" not in launch(replace(naps, engine=replace(planned.engine, knows=knows)), 1).argv
    )


def test_a_gpu_is_chosen_by_its_place_on_the_bus() -> None:
    added = environment(replace(plan(), gpu_index=1))
    assert added["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert added["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_gpu_with_a_uuid_is_chosen_by_that() -> None:
    """A number is another card's when one before it has fallen off the bus."""
    uuids = ("GPU-0c24-1", "GPU-0c24-2")
    named = environment(replace(plan(), gpu_index=0, gpu_indexes=(0, 1), gpu_uuids=uuids))
    assert named["CUDA_VISIBLE_DEVICES"] == "GPU-0c24-1,GPU-0c24-2"


@pytest.mark.parametrize(
    ("uuids", "kept"),
    [(("GPU-1", "GPU-2"), True), (("GPU-1", "GPU-1"), False), (("GPU-1", None), False)],
)
def test_a_plan_knows_its_cards_by_uuids_when_each_has_its_own(
    uuids: tuple[str | None, ...], kept: bool
) -> None:
    cards = [replace(builders.gpu(i), uuid=uuid) for i, uuid in enumerate(uuids)]
    assert uuids_of(cards) == (uuids if kept else ())


def test_the_command_line_can_be_typed() -> None:
    named = replace(plan(), model_path="/models/with space.gguf")
    line = command_line(launch(named, 1))
    assert "'/models/with space.gguf'" in line
    assert "taskset -c 0,1,2,3" in line


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\nkill -ILL $$\n", "illegal instruction"),
        ("#!/bin/sh\necho hello\n", "not a llama-server"),
        ("\x7fELF not really", "does not run here"),
    ],
)
def test_a_program_that_is_no_engine(tmp_path: Path, script: str, words: str) -> None:
    program = tmp_path / "llama-server"
    program.write_text(script)
    program.chmod(0o755)
    with pytest.raises(AppError, match=words):
        binary_build(program)


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="does not exist"):
        binary_build(tmp_path / "none")
    (tmp_path / "plain").write_text("x")
    with pytest.raises(AppError, match="not executable"):
        binary_build(tmp_path / "plain")


def test_a_binary_is_asked_what_it_understands(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--help) echo "-c, --ctx-size N  size"; echo "-np, --parallel N"; echo "-m, --model F";;\n'
        '--version) echo "version: 4935 (960e7260)" >&2;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    build = binary_build(program)
    assert build.version == "llama-server 4935 (960e7260)"
    assert build.gpu_architectures == ()
    assert {"--ctx-size", "--parallel", "--model"} <= set(build.knows)


def test_a_model_that_ranks_is_started_and_asked_as_one() -> None:
    build = replace(plan().engine, knows=(*plan().engine.knows, "--embeddings", "--reranking"))
    ranking = replace(plan(), engine=build, embeddings=True, reranks=True)
    argv = launch(ranking, 8080).argv
    assert "--reranking" in argv
    assert "--embeddings" not in argv
    assert "--embeddings" in launch(replace(ranking, reranks=False), 8080).argv
    asked = LlamaCpp().first_question(ranking)
    assert asked.path == "/v1/rerank"
    assert len(asked.body["documents"]) == 2
    score = {"results": [{"index": n, "relevance_score": 0.5} for n in range(2)]}
    assert LlamaCpp().judge_answer(ranking, score) == ()
    assert LlamaCpp().judge_answer(ranking, {"data": [{"embedding": [0.1]}]})
