"""Which engine runs a model here: the best that fits and has answered, and why."""

from dataclasses import replace
from pathlib import Path

import pytest
from builds_made import DIES, made_build

import builders
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.check import judge_build
from workhorse.engines.supply.choose import Candidate, choose_build
from workhorse.engines.supply.manifest import BuiltFile, Manifest, SourcePackage
from workhorse.engines.supply.pick import named_engine, pick_engine
from workhorse.engines.supply.proof import (
    Proof,
    architectures_reached,
    program_sha256,
    proven_build,
    read_proof,
    write_proof,
)
from workhorse.errors import EXIT_NO, AppError
from workhorse.records import EngineBuild, Gpu, Machine, System
from workhorse.text import same

EMBEDDED = ("avx2", "fma")
FLAGS = ("avx2", "fma", "avx512f")
MANIFEST = Manifest(
    name="b",
    engine="llama.cpp",
    source=SourcePackage("p", "1", "0" * 64, "0.5.0-dev", "0c1e"),
    files=(BuiltFile("bin/llama-server", "0" * 64, 1),),
    program="bin/llama-server",
    architecture="x86_64",
    cpu_variant="native",
    needs_flags=FLAGS,
    sass=(),
    ptx=(),
    compiler="clang",
    options=(),
    openmp=False,
    bounded_wait=True,
    glibc="2.17",
    licences=(),
    built_at="2026-11-30T12:00:00+00:00",
    minutes=None,
)


def machine(flags: tuple[str, ...] = FLAGS, gpus: tuple[Gpu, ...] = ()) -> Machine:
    return builders.machine(flags=flags, gpus=gpus)


def chosen(*manifests: Manifest, proven: bool = True, here: Machine | None = None) -> str | None:
    candidates = [Candidate(manifest, proven) for manifest in manifests]
    return choose_build(candidates, EMBEDDED, here or machine()).name


def test_a_build_for_this_cpu_is_taken() -> None:
    assert chosen(MANIFEST) == "b"
    reason = choose_build([Candidate(MANIFEST, True)], EMBEDDED, machine()).reason
    assert (reason.setting, reason.value) == ("engine", "b")
    assert "answered on this machine" in reason.because.en


def test_the_newest_among_equals() -> None:
    newer = replace(MANIFEST, name="n", built_at="2026-12-01T12:00:00+00:00")
    assert chosen(MANIFEST, newer) == chosen(newer, MANIFEST) == "n"


def test_more_instructions_go_before_newer() -> None:
    plain = replace(MANIFEST, name="p", needs_flags=EMBEDDED, built_at="2027-01-01T00:00:00+00:00")
    assert chosen(MANIFEST, plain) == "b"
    assert chosen(plain) == "p"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"needs_flags": ("amx_tile",)}, "amx_tile"),
        ({"needs_flags": ()}, "fewer instruction sets"),
        ({"architecture": "aarch64"}, "aarch64"),
        ({"glibc": "2.38"}, "glibc 2.38"),
        ({"bounded_wait": False}, "never give the core back"),
    ],
)
def test_what_is_not_taken_says_why(changes: dict[str, object], words: str) -> None:
    other = replace(MANIFEST, **changes)  # type: ignore[arg-type]
    choice = choose_build([Candidate(other, True)], EMBEDDED, machine())
    assert choice.name is None
    assert choice.reason.value == "embedded"
    assert words in choice.rejected[0].because.en


def test_one_whose_threads_spin_is_taken_where_the_embedded_engine_does_not_run() -> None:
    spins = replace(MANIFEST, bounded_wait=False)
    assert choose_build([Candidate(spins, True)], None, machine()).name == "b"
    assert chosen(replace(spins, openmp=True)) == "b"


def test_one_that_has_not_answered_here() -> None:
    choice = choose_build([Candidate(MANIFEST, False)], EMBEDDED, machine())
    assert choice.name is None
    assert "engine verify b" in choice.rejected[0].because.en


def test_one_whose_card_was_wrong_is_not_taken_for_that_card() -> None:
    volta = replace(MANIFEST, sass=("sm_70",))
    wrong = Candidate(volta, True, card_wrong=True)
    with_card = machine(gpus=(builders.gpu(),))
    choice = choose_build([wrong], EMBEDDED, with_card)
    assert choice.name is None
    assert "engine verify b" in choice.rejected[0].because.en
    other = Candidate(replace(volta, name="a", built_at="2026-01-01T00:00:00+00:00"), True)
    assert choose_build([wrong, other], EMBEDDED, with_card).name == "a"
    assert choose_build([wrong], EMBEDDED, machine()).name == "b"  # no such card is here any more


def test_where_the_embedded_engine_does_not_run() -> None:
    old = replace(MANIFEST, needs_flags=("avx",))
    assert chosen(old, here=machine(("avx", "sse4_2"))) == "b"
    assert choose_build([Candidate(old, True)], None, machine(("avx",))).name == "b"
    assert chosen(old, here=machine()) is None


@pytest.mark.parametrize(
    ("sass", "ptx", "taken"),
    [
        (("sm_70",), (), True),
        ((), ("compute_70",), True),
        ((), ("compute_61",), True),
        (("sm_80",), (), False),
        (("sm_75",), ("compute_75",), False),
    ],
)
def test_code_for_the_card_goes_before_all(
    sass: tuple[str, ...], ptx: tuple[str, ...], taken: bool
) -> None:
    cuda = replace(MANIFEST, name="cuda", needs_flags=(), sass=sass, ptx=ptx)
    here = machine(gpus=(builders.gpu(),))
    assert chosen(MANIFEST, cuda, here=here) == ("cuda" if taken else "b")


def test_machine_code_goes_before_ptx() -> None:
    here = machine(gpus=(builders.gpu(),))
    ptx = replace(MANIFEST, name="ptx", ptx=("compute_61",), built_at="2027-01-01T00:00:00+00:00")
    assert chosen(replace(MANIFEST, name="sass", sass=("sm_70",)), ptx, here=here) == "sass"


# --- findings ------------------------------------------------------------------------------------


def codes(manifest: Manifest, here: Machine, damaged: tuple[str, ...] = ()) -> dict[str, str]:
    return {f.code: f.level for f in judge_build(manifest, damaged, here).findings}


def test_findings() -> None:
    assert codes(MANIFEST, machine()) == {}
    assert codes(MANIFEST, machine(), ("bin/x",)) == {"engine.files-differ": "blocker"}
    assert codes(MANIFEST, machine(("avx2",))) == {"engine.cpu-flags-missing": "blocker"}
    assert codes(replace(MANIFEST, architecture="aarch64"), machine()) == {
        "engine.other-architecture": "blocker"
    }
    assert codes(replace(MANIFEST, sass=("sm_70",)), machine()) == {"engine.gpu-code": "note"}
    here = machine(gpus=(builders.gpu(),))
    assert codes(MANIFEST, here) == {"engine.gpu-code": "note"}
    assert codes(replace(MANIFEST, sass=("sm_70",)), here) == {"engine.gpu-code": "good"}


def test_an_old_cpu_is_told_which_build_it_needs() -> None:
    old = machine(("avx", "popcnt", "sse4_2", "ssse3"))
    (finding,) = judge_build(MANIFEST, (), old).findings
    assert finding.command == "workhorse engine build --cpu avx"
    assert "avx512f" in finding.seen.en
    assert "illegal instruction" in finding.why.en


@pytest.mark.parametrize(
    ("needed", "here", "blocked"),
    [
        ("2.17", "2.36", False),
        ("2.36", "2.36", False),
        ("2.9", "2.17", False),
        ("2.38", "2.36", True),
        (None, "2.36", False),
        ("2.38", None, False),
        ("2.38", "odd", False),
    ],
)
def test_the_c_library(needed: str | None, here: str | None, blocked: bool) -> None:
    system = replace(machine(), system=System("6.1", "Debian", here, True))
    assert judge_build(replace(MANIFEST, glibc=needed), (), system).blocked is blocked


# --- from the folder to the plan -----------------------------------------------------------------


def put(builds: Builds, name: str, program: str = DIES, *, proven: bool = True) -> None:
    builds.folder.mkdir(exist_ok=True)
    manifest = made_build(builds.folder / name, program, name=name, needs_flags=FLAGS)
    if proven:
        proof = Proof(
            program_sha256(manifest), "2026", "llama-server 1", ("--model",), (), "a", 1.0
        )
        write_proof(builds.folder / name, proof)


def test_an_installed_build_gets_into_the_plan(tmp_path: Path) -> None:
    builds = Builds(tmp_path / "engines")
    put(builds, "b")
    picked = pick_engine(builds, machine(), lambda: builders.EMBEDDED)
    assert picked.build.command == (str(tmp_path / "engines" / "b" / "bin" / "llama-server"),)
    assert picked.build.needs_flags == FLAGS
    assert picked.build.knows == ("--model",)
    assert picked.reasons[0].value == "b"


@pytest.mark.parametrize(
    ("record", "seen", "on"),
    [
        (None, None, True),
        (None, True, True),
        (None, False, False),
        ("unproven", None, False),
        ("unproven", True, True),
        ("unproven", False, False),
        ("proven", False, False),
    ],
)
def test_attention_is_what_the_card_that_is_here_says(
    record: str | None, seen: bool | None, on: bool, tmp_path: Path
) -> None:
    manifest = replace(MANIFEST, flash_attention=record)  # type: ignore[arg-type]
    proof = Proof("0", "2026", "v", (), (), "a", 1.0, attention_right=seen)
    assert proven_build(tmp_path, manifest, proof).flash_attention is on


def test_the_cards_that_a_build_reaches(tmp_path: Path) -> None:
    assert architectures_reached(MANIFEST) == ()
    volta = architectures_reached(replace(MANIFEST, sass=("sm_70",)))
    assert {"sm_70", "sm_75"} <= set(volta) and not {"sm_61", "sm_80"} & set(volta)
    by_ptx = set(architectures_reached(replace(MANIFEST, ptx=("compute_70",))))
    assert {"sm_70", "sm_75", "sm_80", "sm_90"} <= by_ptx and "sm_61" not in by_ptx


def test_without_builds_nothing_changes(tmp_path: Path) -> None:
    picked = pick_engine(Builds(tmp_path / "none"), machine(), lambda: builders.EMBEDDED)
    assert (picked.build, picked.reasons, picked.rejected) == (builders.EMBEDDED, (), ())


def test_an_altered_program_is_not_started(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    put(builds, "b")
    (tmp_path / "b" / "bin" / "llama-server").write_text("#!/bin/sh\n")
    assert pick_engine(builds, machine(), lambda: builders.EMBEDDED).build == builders.EMBEDDED
    with pytest.raises(AppError, match="engine verify b"):
        named_engine(Path("b"), builds)


def test_a_proof_of_another_program_counts_for_nothing(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    put(builds, "b")
    build = builds.get("b")
    proof = read_proof(build.folder, build.manifest)
    assert proof is not None
    write_proof(build.folder, replace(proof, program_sha256="0" * 64))
    assert read_proof(build.folder, build.manifest) is None
    (build.folder / "proof.json").write_text("{")
    assert read_proof(build.folder, build.manifest) is None


def test_no_engine_at_all(tmp_path: Path) -> None:
    def missing() -> EngineBuild:
        raise AppError(same("not installed"), same("none"))

    with pytest.raises(AppError, match="not installed"):
        pick_engine(Builds(tmp_path), machine(), missing)


def test_a_cpu_that_no_engine_here_fits(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="workhorse engine build") as refused:
        pick_engine(Builds(tmp_path), machine(("avx",)), lambda: builders.EMBEDDED)
    assert "avx2, fma" in refused.value.what.en
    assert refused.value.exit_code == EXIT_NO


def test_an_engine_by_name_or_path(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    put(builds, "b")
    put(builds, "untried", proven=False)
    assert named_engine(Path("b"), builds).build.version.endswith(", b")
    by_path = named_engine(tmp_path / "b" / "bin" / "llama-server", builds).build
    assert by_path.version == "llama-server 1"
    with pytest.raises(AppError, match="engine verify untried") as refused:
        named_engine(Path("untried"), builds)
    assert refused.value.exit_code == EXIT_NO
    with pytest.raises(AppError, match="Installed: b, untried"):
        named_engine(Path("nothing"), builds)
    with pytest.raises(AppError, match="does not exist"):
        named_engine(tmp_path / "nothing", builds)
