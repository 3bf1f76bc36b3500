"""Conversions that are killed, run out of disk, or are given files that lie."""

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from bf16_checkpoints import (
    bf16_tensor,
    packed,
    read_file,
    reference,
    safetensors_file,
    two_shards,
    unpacked,
    weights,
    write_checkpoint,
)

from workhorse.cli import main
from workhorse.errors import EXIT_FAILED, AppError
from workhorse.models.convert.job import Wish, convert
from workhorse.models.convert.report import Conversion

# Kills itself at the n-th thing that it does: a file opened, renamed, removed, some bytes done.
KILLED = """
import os, random, signal, sys
from workhorse.models.convert.job import Wish, convert

source, target = sys.argv[1], sys.argv[2]

def run(to, kill_at):
    done = 0
    def event(*_):
        nonlocal done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(lambda name, _: event() if name.startswith(("open", "os.", "shutil.")) else 0)
    convert(Wish(source, to, threads=2), event)
    return done

def child(to, kill_at):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            print(run(to, kill_at), flush=True)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

from pathlib import Path
{body}
"""
KILL_TWENTY_TIMES = """
dice = random.Random(8)
for attempt in range(20):
    place = Path(target + str(attempt))
    code = child(place, dice.randrange(1, int(sys.argv[3])))
    print(code, place.exists(), flush=True)
"""
COUNT = "print(child(Path(target), -1), flush=True)"


def script(body: str, *words: str) -> list[str]:
    command = [sys.executable, "-c", KILLED.replace("{body}", body), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def run(folder: Path, target: Path | None = None) -> Conversion:
    return convert(Wish(str(folder), target), lambda done, total: None)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the report, which says when and where."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "conversion.json"
    }


def test_killed_twenty_times_it_leaves_nothing_half_written(tmp_path: Path) -> None:
    shards = [{f"t{i}": bf16_tensor(weights(30_000, i))} for i in range(6)]
    source = write_checkpoint(tmp_path / "m", shards)
    events, code, *_ = script(COUNT, str(source), str(tmp_path / "whole"))
    assert code == "0"
    wanted = contents(tmp_path / "whole")
    lines = script(KILL_TWENTY_TIMES, str(source), str(tmp_path / "killed"), events)
    assert lines[:-1].count("-9 False") + lines[:-1].count("-9 True") == 20
    resumed = 0
    for attempt in range(20):
        target = tmp_path / f"killed{attempt}"
        if target.exists():  # it was killed after the last step: all is there
            assert contents(target) == wanted
            continue
        begun = contents(target.with_name(target.name + ".part"))
        for name, data in begun.items():
            if name.startswith("model/") and name.endswith(".safetensors"):
                assert data == wanted[name.removeprefix("model/")]
        resumed += run(source, target).resumed_files
        assert contents(target) == wanted
        assert not target.with_name(target.name + ".part").exists()
    assert resumed > 0


def test_a_finished_file_of_another_source_is_made_anew(tmp_path: Path) -> None:
    shards = two_shards(1000)
    source = write_checkpoint(tmp_path / "m", shards)
    broken = source / "tokenizer.json"
    broken.unlink()
    (source / "config.json").write_text("no JSON")
    with pytest.raises(AppError, match="not JSON"):
        run(source)  # both files are finished by then
    (source / "config.json").write_text("{}")
    first = source / "model-00001-of-00002.safetensors"
    codes = weights(1000, 9)
    first.write_bytes(safetensors_file({**shards[0], "a.weight": bf16_tensor(codes)}))
    os.utime(first, ns=(1, 1))
    done = run(source)
    assert done.resumed_files == 1
    after = read_file(tmp_path / "m-FP16" / first.name)
    assert unpacked(after["a.weight"][2]) == [reference(code) for code in codes]


def test_a_full_disk_is_said_and_nothing_is_left_under_the_name(tmp_path: Path) -> None:
    """On a real small disk; what the check beforehand cannot know is told as well."""
    source = write_checkpoint(tmp_path / "m", [{"a": bf16_tensor(weights(4_000_000))}])
    small = tmp_path / "small"
    small.mkdir()
    command = (
        f"mount -t tmpfs -o size=7m none {small} && "
        f"{sys.executable} -m workhorse convert {source} --output {small}/out; code=$?; "
        f"ls {small}; exit $code"
    )
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace here")
    done = subprocess.run([*inside, command], capture_output=True, text=True, timeout=300)
    assert done.returncode == EXIT_FAILED
    assert "7.00 MiB left; the converted model takes" in done.stderr
    assert done.stdout.split() == ["out.part"]
    unaware = f"""
import shutil, sys
from types import SimpleNamespace
from workhorse.cli import main
shutil.disk_usage = lambda _: SimpleNamespace(free=1 << 40)
sys.exit(main(["convert", {str(source)!r}, "--output", {str(small / "out")!r}]))
"""
    (tmp_path / "unaware.py").write_text(unaware)
    command = (
        f"mount -t tmpfs -o size=7m none {small} && {sys.executable} {tmp_path}/unaware.py; "
        f"code=$?; find {small} -type f; exit $code"
    )
    done = subprocess.run([*inside, command], capture_output=True, text=True, timeout=300)
    assert done.returncode == EXIT_FAILED
    assert "The disk is full" in done.stderr
    assert done.stdout == ""


def header_says(entry: dict[str, object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        raw = json.dumps({"a.weight": entry}).encode()
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(100))

    return spoil


def cut(n_bytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, n_bytes)


SPOILT = {
    "truncated header": (cut(60), "incomplete"),
    "truncated data": (cut(40_000), "incomplete"),
    "empty": (cut(0), "no safetensors file"),
    "no header": (lambda path: path.write_bytes(b"\xff" * 4096), "no safetensors file"),
    "missing": (lambda path: path.unlink(), "1 of the 2 files"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "files of the model are missing"),
    "unknown type": (
        header_says({"dtype": "BF17", "shape": [50], "data_offsets": [0, 100]}),
        "unknown type BF17",
    ),
    "type and bytes differ": (
        header_says({"dtype": "F32", "shape": [50], "data_offsets": [0, 100]}),
        "does not lie where it should",
    ),
    "a hole": (
        header_says({"dtype": "BF16", "shape": [50], "data_offsets": [10, 110]}),
        "does not lie where it should",
    ),
    "another tensor": (
        lambda path: path.write_bytes(safetensors_file({"x": bf16_tensor([1])})),
        "lacks",
    ),
    "a tensor twice": (
        lambda path: path.write_bytes(
            safetensors_file({**two_shards(9)[0], "b.weight": bf16_tensor([1])})
        ),
        "as well",
    ),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_file_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    spoil, words = SPOILT[kind]
    source = write_checkpoint(tmp_path / "m", two_shards())
    spoil(source / "model-00001-of-00002.safetensors")
    with pytest.raises(AppError, match=words):
        run(source)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..\\x.safetensors",
        "x.py",
        "\0.bin",
    ],
)
def test_an_index_that_points_outside_is_refused(tmp_path: Path, file: str) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards(100))
    (tmp_path / "secret.safetensors").write_bytes(safetensors_file({"s": bf16_tensor([1])}))
    index = source / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**names, "s": file}}))
    with pytest.raises(AppError, match="no file of this folder"):
        run(source)
    assert not (tmp_path / "m-FP16.part").exists()


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{" * 10_000, b'{"weight_map": {"a": 1}}', b"\xff\xfe"]
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, raw: bytes) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards(100))
    (source / "model.safetensors.index.json").write_bytes(raw)
    with pytest.raises(AppError, match="no index"):
        run(source)


def test_a_source_that_shrinks_meanwhile_is_noticed(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "m", [{"a": bf16_tensor(weights(3_000_000))}])
    file = source / "model.safetensors"
    with pytest.raises(AppError, match="changed while it was being read"):
        convert(Wish(str(source), threads=1), lambda done, total: os.truncate(file, 1000))
    assert contents(tmp_path / "m-FP16.part") == {}


def test_what_does_not_read_back_as_written_is_refused(tmp_path: Path) -> None:
    """One bit of the disk turns over between writing and reading back."""
    source = write_checkpoint(tmp_path / "m", [{"a": bf16_tensor(weights(1_000_000))}])
    part = tmp_path / "m-FP16.part/model/model.safetensors.part"

    def spoil(done: int, total: int) -> None:
        if done == total // 2:  # all is written
            with part.open("r+b") as file:
                file.seek(-1000, os.SEEK_END)
                byte = file.read(1)[0] ^ 1
                file.seek(-1000, os.SEEK_END)
                file.write(bytes([byte]))

    with pytest.raises(AppError, match="does not read back as it was written"):
        convert(Wish(str(source), threads=2), spoil)
    assert contents(tmp_path / "m-FP16.part") == {}
    assert not (tmp_path / "m-FP16").exists()


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "m", [{"a": bf16_tensor(weights(3_000_000))}])
    found: list[AppError] = []

    def second() -> None:
        try:
            run(source)
        except AppError as error:
            found.append(error)

    def progress(done: int, total: int) -> None:
        if not found:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    convert(Wish(str(source), threads=1), progress)
    assert "Another process" in found[0].what.en
    assert (tmp_path / "m-FP16/model.safetensors").exists()


def test_ctrl_c_keeps_the_finished_files_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards())

    def stop(_: object, done: int, total: int) -> None:
        if done > total * 3 // 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("workhorse.cli.progress.LateBar.step", stop)
    assert main(["convert", str(source)]) == EXIT_FAILED
    assert "run the same command again" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(source).resumed_files == 1


def test_other_types_alone_are_nothing_to_convert(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "m", [{"a": ("F16", [2], packed([1, 2]))}])
    with pytest.raises(AppError, match="no BF16 weights"):
        run(source)


@pytest.mark.parametrize("target", ["m", "m/inside", "."])
def test_a_target_that_would_hold_itself_is_refused(tmp_path: Path, target: str) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards(10))
    with pytest.raises(AppError, match="folder that is converted"):
        run(source, tmp_path / target)


def test_a_target_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards(10))
    there = tmp_path / "m-FP16"
    there.mkdir()
    (there / "mine").write_text("kept")
    with pytest.raises(AppError, match="there already"):
        run(source)
    assert contents(there) == {"mine": b"kept"}


@pytest.mark.parametrize(
    ("reference", "words"),
    [("hf:owner/name", "not on this machine"), ("empty", "neither safetensors")],
)
def test_what_is_no_checkpoint_here(tmp_path: Path, reference: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    name = reference if ":" in reference else str(tmp_path / reference)
    with pytest.raises(AppError, match=words):
        convert(Wish(name), lambda done, total: None)
