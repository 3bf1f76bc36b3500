"""What a bundle is made of: chosen by the machine it is for, fetched by the lock, whole or not."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_bundles import ORDER

from workhorse.bundle.assemble import assemble
from workhorse.bundle.carried.manifest import Part
from workhorse.bundle.job import verify
from workhorse.bundle.order import (
    PYTHONS,
    choose_engine_build,
    order_for,
)
from workhorse.bundle.sources import Source, engine_sources, model_source
from workhorse.cli import main
from workhorse.cli.bundle_plan import chosen_build, plans_for, told_of_builds
from workhorse.config import Places
from workhorse.engines.supply.builds import Build
from workhorse.engines.supply.manifest import BuiltFile, Manifest, SourcePackage, write_manifest
from workhorse.errors import AppError
from workhorse.knowledge.cpu_variants import variants
from workhorse.machine.probe import probe

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests/captures"
DEADLINE_S = 300.0


def quiet(_done: int, _total: int | None) -> None:
    pass


# --- the machine ---------------------------------------------------------------------------------


def record_of(name: str, **changes: Any) -> Manifest:
    variant = {one.name: one for one in variants()}.get(name)
    made = Manifest(
        name=name,
        engine="llama.cpp",
        source=SourcePackage("llama-cpp-python", "0.3.36", "0" * 64, "0.5.0-dev", "0c1e57098"),
        files=(),
        program="bin/llama-server",
        architecture="x86_64",
        cpu_variant=name,
        needs_flags=variant.needs if variant else (),
        sass=(),
        ptx=(),
        compiler="clang",
        options=(),
        openmp=True,
        glibc="2.17",
        licences=("llama.cpp: MIT",),
        built_at="2026-11-30T12:00:00+00:00",
        minutes=None,
    )
    return replace(made, **changes)


BUILDS = [record_of(one.name) for one in variants()]
CARD = record_of("volta", needs_flags=variants()[4].needs, sass=("sm_70",), ptx=("compute_70",))


@pytest.mark.parametrize(
    ("capture", "builds", "chosen"),
    [
        ("avx_only", BUILDS, "avx-f16c"),
        ("avx_only", BUILDS[:3], "avx"),
        ("machine_a", BUILDS, "avx2"),
        ("machine_a", [], None),
        ("eight_v100", [*BUILDS, CARD], "volta"),
        ("p40_box", [*BUILDS, CARD], "avx2"),
    ],
)
def test_the_captured_machine_gets_its_engine(
    capture: str, builds: list[Manifest], chosen: str | None
) -> None:
    machine = probe(CAPTURES / f"{capture}.json")
    found = choose_engine_build(builds, machine)
    assert (found.name if found else None) == chosen


def test_a_cpu_that_nothing_is_built_for_is_told_what_to_build() -> None:
    machine = probe(CAPTURES / "avx_only.json")
    with pytest.raises(AppError, match="engine build --cpu avx") as told:
        choose_engine_build([record_of("avx2")], machine)
    assert told.value.exit_code == 3


def test_the_c_library_of_the_capture_counts_and_none_is_assumed() -> None:
    told = order_for(probe(CAPTURES / "avx_only.json"))
    assert (told.glibc, told.glibc_told, told.pythons) == ("2.31", True, PYTHONS)
    machine = probe(CAPTURES / "avx_only.json")
    untold = replace(machine, system=replace(machine.system, glibc=None))
    assert (order_for(untold).glibc, order_for(untold).glibc_told) == ("2.28", False)


def test_a_card_that_nothing_has_code_for_is_told() -> None:
    (verdict,) = plans_for((), probe(CAPTURES / "eight_v100.json"), None)
    (finding,) = verdict.findings
    assert (finding.code, finding.level) == ("bundle.no-gpu-code", "warning")
    assert finding.command == "workhorse engine build --gpu sm_70 --cpu avx512"
    assert plans_for((), probe(CAPTURES / "avx_only.json"), None) == []


def test_a_build_that_spins_stays_here_and_that_is_told(tmp_path: Path) -> None:
    where, machine = Places(tmp_path), probe(CAPTURES / "machine_a.json")
    avx2 = {one.name: one for one in variants()}["avx2"]
    needs = {"needs_flags": avx2.needs, "cpu_variant": "avx2"}
    built(where.engines / "spinning", openmp=False, **needs)
    built(where.engines / "for-the-card", openmp=False, sass=("sm_90",), **needs)
    assert chosen_build(machine, where) is None
    (verdict,) = told_of_builds(machine, None, where)
    (finding,) = verdict.findings
    assert (finding.code, finding.level) == ("bundle.spinning-build", "warning")
    assert "spinning" in finding.seen.en
    assert finding.command == "workhorse engine build --cpu avx2"
    better = built(where.engines / "sleeping", openmp=False, bounded_wait=True, **needs)
    assert told_of_builds(machine, chosen_build(machine, where), where) == []
    assert chosen_build(machine, where) == better
    avx_only = probe(CAPTURES / "avx_only.json")
    assert told_of_builds(avx_only, None, where) == []


# --- the command ---------------------------------------------------------------------------------

FREE = """\
               total        used        free      shared  buff/cache   available
Mem:    134919712768  4000000000 120000000000    10000000 10919712768 130000000000
Swap:              0           0           0
"""
AVX = str(CAPTURES / "avx_only.json")
MISTAKES = {
    "no capture": (["create"], 2, "needs --for CAPTURE"),
    "nothing there": (["create", "--for", "/nowhere"], 1, "is no machine's directory"),
    "another kind": (["create", "--for", "{tmp}/free.txt"], 2, "instruction sets"),
    "a text of nothing": (["create", "--for", "{tmp}/notes.txt"], 1, "no text in it is known"),
    "no engine": (["create", "--for", AVX], 3, "engine build --cpu avx"),
    "no model": (["create", "--for", "here", "--model", "{tmp}/no.gguf"], 1, "no.gguf"),
    "a model elsewhere": (
        ["create", "--for", "here", "--model", "hf:a/b"],
        1,
        "is not on this machine",
    ),
    "a model without its option": (["create", "m.gguf", "--for", "here"], 2, "by --model"),
    "pieces of a folder": (["create", "--for", "here", "--split", "1G"], 2, "--output NAME.tar"),
    "a compressed file": (["create", "--for", "here", "--output", "b.tar.gz"], 2, "NAME.tar"),
    "an option elsewhere": (["verify", "{tmp}", "--split", "1G"], 2, "only goes with"),
    "another option elsewhere": (["create", "--prefix", "x"], 2, "only goes with"),
    "no bundle": (["verify"], 2, "takes one folder"),
    "two bundles": (["install", "a", "b"], 2, "takes one folder"),
    "a bundle that is not there": (["install", "{tmp}/nowhere"], 2, "does not exist"),
    "a folder that is none": (["verify", "{tmp}"], 2, "is no bundle"),
    "a file that is none": (["verify", "{tmp}/notes.txt"], 3, "cut off or no tar"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_what_a_user_does_wrong_is_one_sentence_and_one_step(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("to do: nothing\n")
    (tmp_path / "free.txt").write_text(FREE)
    words, code, sentence = MISTAKES[what]
    assert main(["bundle", *(word.format(tmp=tmp_path) for word in words)]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n  → ") == 1
    assert not (tmp_path / "home/bundles").exists()
    assert not list(tmp_path.glob("workhorse-bundle*"))


def test_a_model_that_does_not_fit_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    real_model: Path,
) -> None:
    """The capture of a large machine, with its memory taken out."""
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    said = json.loads((CAPTURES / "machine_a.json").read_text())
    said["proc/meminfo"] = "MemTotal: 65536 kB\nMemFree: 60000 kB\nMemAvailable: 60000 kB\n"
    for name in [name for name in said if name.startswith("sys/devices/system/node/")]:
        del said[name]
    (tmp_path / "small.json").write_text(json.dumps(said))
    words = ["bundle", "create", "--for", str(tmp_path / "small.json")]
    assert main([*words, "--model", str(real_model), "--output", str(tmp_path / "b")]) == 3
    assert real_model.name in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


# --- parts ---------------------------------------------------------------------------------------


def built(folder: Path, **changes: Any) -> Build:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/llama-server").write_bytes(b"program")
    file = BuiltFile("bin/llama-server", hashlib.sha256(b"program").hexdigest(), 7)
    manifest = record_of(folder.name, files=(file,), **changes)
    write_manifest(folder, manifest)
    (folder / "proof.json").write_text("{}")
    return Build(folder, manifest)


def test_a_build_comes_without_the_proof_of_this_machine(tmp_path: Path) -> None:
    (source,) = engine_sources(built(tmp_path / "avx"))
    assert source.part.files == ("engines/avx/manifest.json", "engines/avx/bin/llama-server")
    assert source.part.may_pass_on
    assert set(source.part.needs_flags) == {"avx", "popcnt", "sse4_2", "ssse3"}
    (tmp_path / "avx/bin/llama-server").write_bytes(b"another")
    with pytest.raises(AppError, match="is damaged"):
        engine_sources(Build(tmp_path / "avx", source_manifest(tmp_path / "avx")))


def source_manifest(folder: Path) -> Manifest:
    from workhorse.engines.supply.manifest import read_manifest as read_record

    return read_record(folder)


def test_nvidias_files_are_marked_as_the_users_own(tmp_path: Path) -> None:
    cublas = tmp_path / ".cublas-12"
    cublas.mkdir()
    (cublas / "libcublas.so.12").write_bytes(b"x")
    licences = ("llama.cpp: MIT", "lib/x: NVIDIA CUDA Toolkit EULA, the user's own copy")
    build = built(tmp_path / "volta", sass=("sm_70",), licences=licences)
    sources = engine_sources(build)
    assert [(one.part.kind, one.part.may_pass_on) for one in sources] == [
        ("engine", False),
        ("nvidia", False),
    ]
    assert sources[1].part.files == ("engines/.cublas-12/libcublas.so.12",)


@pytest.mark.real
def test_a_linked_model_comes_as_a_file(tmp_path: Path, real_model: Path) -> None:
    """Hubs' own caches are made of links."""
    (tmp_path / "linked.gguf").symlink_to(real_model)
    source = model_source(tmp_path / "linked.gguf")
    assert source.files == (("models/linked.gguf", real_model.resolve()),)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def test_a_checkpoint_comes_whole_and_is_told_to_need_another_engine(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    (folder / ".cache").mkdir(parents=True)
    (folder / ".cache/lock").touch()
    (folder / "weights.part").touch()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "tokenizer.json").write_text("{}")
    tensor = {"dtype": "F16", "shape": [100, 64], "data_offsets": [0, 12800]}
    head = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    weights = len(head).to_bytes(8, "little") + head + bytes(12800)
    (folder / "model.safetensors").write_bytes(weights)
    source = model_source(folder)
    names = ("config.json", "model.safetensors", "tokenizer.json")
    assert source.part.files == tuple(f"models/tiny/{name}" for name in names)
    (verdict,) = plans_for([folder], probe(CAPTURES / "avx_only.json"), None)
    assert [finding.code for finding in verdict.findings] == ["bundle.checkpoint"]


# --- writing -------------------------------------------------------------------------------------


def some_sources(place: Path, size: int = 3_000_000) -> list[Source]:
    place.mkdir(exist_ok=True)
    names = [f"f{number}" for number in range(4)]
    for name in names:
        (place / name).write_bytes(os.urandom(size))
    files = tuple((f"models/{name}", place / name) for name in names)
    return [Source(Part("model", "m", "1", "MIT", "test", tuple(p for p, _ in files)), files)]


def test_beside_the_originals_nothing_is_copied(tmp_path: Path) -> None:
    sources = some_sources(tmp_path / "o")
    assemble(tmp_path / "b", sources, ORDER, quiet)
    before = os.statvfs(tmp_path)
    assert before.f_bsize
    shared = [
        (tmp_path / "b" / path).stat().st_ino == o.stat().st_ino for path, o in sources[0].files
    ]
    blocks = [(tmp_path / "b" / path).stat().st_blocks for path, _ in sources[0].files]
    assert all(shared) or all(blocks)  # linked, or shared by the file system
    assert not (tmp_path / "b.part").exists()


def test_a_bundle_keeps_its_programs_when_ours_change(tmp_path: Path) -> None:
    program = tmp_path / "install.py"
    program.write_text("print(1)")
    part = Part("script", "s", "1", "MIT", "test", ("install.py",))
    assemble(tmp_path / "b", [Source(part, (("install.py", program),))], ORDER, quiet)
    program.write_text("print(2)")  # in place, as editors do
    assert (tmp_path / "b/install.py").read_text() == "print(1)"


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from small_bundles import ORDER
from workhorse.bundle import assemble as made
from workhorse.bundle.carried.manifest import Part
from workhorse.bundle.sources import Source
place, target = Path(sys.argv[2]), Path(sys.argv[3])
copy = made.place
made.place = lambda a, b, moved, may_link: copy(a, b, moved, may_link=False)
files = tuple((f"models/{p.name}", p) for p in sorted(place.iterdir()))
part = Part("model", "m", "1", "MIT", "test", tuple(p for p, _ in files))
def step(done, total):
    print(done, flush=True)
    sys.stdin.readline()  # it goes on when it may
made.assemble(target, [Source(part, files)], ORDER, step)
"""


def test_killed_at_any_point_it_has_no_name_and_goes_on(tmp_path: Path) -> None:
    some_sources(tmp_path / "o")
    command = [
        sys.executable,
        "-c",
        CHILD,
        str(Path(__file__).parent),
        str(tmp_path / "o"),
        str(tmp_path / "b"),
    ]
    for steps in (1, 5, 14):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(1, steps):
                process.stdin.write(b"\n")
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        assert not (tmp_path / "b").exists()
    there = {p.name: p.stat().st_ino for p in (tmp_path / "b.part/models").iterdir()}
    quietly = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.run(command, check=True, timeout=DEADLINE_S, **quietly)  # type: ignore[call-overload]
    _, difference = verify(tmp_path / "b", quiet)
    assert not difference
    assert {p.name: p.stat().st_ino for p in (tmp_path / "b/models").iterdir()}.items() >= {
        (name, inode) for name, inode in there.items() if not name.endswith(".part")
    }
    assert not list(tmp_path.glob("*.part"))


def test_what_an_earlier_wish_left_does_not_come_along(tmp_path: Path) -> None:
    (tmp_path / "b.part/models/old").mkdir(parents=True)
    (tmp_path / "b.part/models/old/large.gguf").write_bytes(b"x")
    (tmp_path / "b.part/bundle.json").write_bytes(b"{}")
    assemble(tmp_path / "b", some_sources(tmp_path / "o", 10), ORDER, quiet)
    assert not verify(tmp_path / "b", quiet)[1]


def test_a_name_that_is_taken_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").touch()
    for output, sentence in (
        (tmp_path / "b", "is there already"),
        (tmp_path / "no/b", "no folder"),
    ):
        assert main(["bundle", "create", "--for", "here", "--output", str(output)]) == 2
        assert sentence in capsys.readouterr().err
    assert (tmp_path / "b/mine").exists()
