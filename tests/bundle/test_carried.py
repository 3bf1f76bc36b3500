"""What travels in a bundle, run as its user runs it: checked, refused, installed, broken off."""

import ast
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small_bundles import PYTHON, copied, document, said_by, script, small_bundle

from workhorse.bundle.carried import install as carried_install
from workhorse.bundle.carried.files import place, told_of_disk
from workhorse.bundle.carried.install import files_of, install, install_engine
from workhorse.bundle.carried.manifest import MANIFEST, Manifest, Part, read_manifest
from workhorse.bundle.carried.words import Line, Refusal

Damage = Callable[[Path], object]
DEADLINE_S = 300.0
CARRIED = Path(carried_install.__file__).parent


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # a link to the original
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"#")


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "changed byte": (lambda b: flip_last_byte(b / "models/model.gguf"), "changed: models/model"),
    "longer": (lambda b: append(b / "carried/words.py"), "changed: carried/words"),
    "missing": (lambda b: (b / "models/model.gguf").unlink(), "missing: models/model.gguf"),
    "extra": (lambda b: (b / "notes.txt").write_text("hi"), "extra: notes.txt"),
    "link": (lambda b: as_link(b / "models/model.gguf"), "missing: models/model.gguf; extra"),
    "link to a folder": (lambda b: (b / "more").symlink_to("/etc"), "extra: more"),
    "pipe": (lambda b: os.mkfifo(b / "pipe"), "extra: pipe"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_not_as_it_was_made_is_named_and_not_installed(
    bundle: Path, tmp_path: Path, what: str
) -> None:
    damage, named = DAMAGES[what]
    damaged = copied(bundle, tmp_path / "b")
    damage(damaged)
    for done in (
        script(damaged, "verify.py"),
        script(damaged, "install.py", "--prefix", str(tmp_path / "p")),
    ):
        assert done.returncode == 3, done.stderr
        assert named in done.stderr
        assert done.stderr.count("\n  → ") == 1
    assert not (tmp_path / "p").exists()


def test_a_whole_bundle_is_right_and_stays_as_it_is(bundle: Path) -> None:
    before = sorted(bundle.rglob("*"))
    done = script(bundle, "verify.py")
    assert (done.returncode, done.stdout) == (
        0,
        f"All {len(read_manifest(bundle).files)} files are right.\n",
    )
    assert sorted(bundle.rglob("*")) == before


def test_a_file_beside_the_script_is_not_run(bundle: Path, tmp_path: Path) -> None:
    planted = copied(bundle, tmp_path / "b")
    (planted / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert script(planted, "verify.py").returncode == 3
    assert not (tmp_path / "ran").exists()


# --- installing ----------------------------------------------------------------------------------


# Debian's python3 alone has venv and ensurepip and cannot use them; others leave them out.
WITHOUT_VENV = """
import runpy, sys
sys.modules.update(venv=None, ensurepip=None, distutils=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_is_installed_and_again_changes_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nrequire-hashes = true\ntarget = /nowhere\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    prefix = tmp_path / "a folder's name" / "w"
    words = [str(bundle / "install.py"), "--prefix", str(prefix)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_VENV, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"{prefix}/bin/workhorse up {prefix}/models/model.gguf" in done.stdout
    assert said_by(prefix) == "workhorse 1"
    assert (prefix / "models/model.gguf").read_bytes() == b"GGUF model"
    assert not (tmp_path / "target").exists()
    before = {path: path.stat().st_mtime_ns for path in prefix.rglob("*") if path.is_file()}
    assert script(bundle, "install.py", "--prefix", str(prefix)).returncode == 0
    after = {path: path.stat().st_mtime_ns for path in prefix.rglob("*") if path.is_file()}
    assert {p for p in after if before.get(p) != after[p]} == {prefix / "bin/workhorse"}


def test_a_newer_one_takes_over_and_a_bad_one_does_not(
    bundle: Path, pip_wheel: Path, tmp_path: Path
) -> None:
    prefix = tmp_path / "p"
    install(bundle, prefix, Line())
    small_bundle(tmp_path / "new", pip_wheel, says="workhorse 2")
    install(tmp_path / "new", prefix, Line())
    assert said_by(prefix) == "workhorse 2"
    small_bundle(tmp_path / "bad", pip_wheel, says="oh")
    manifest = read_manifest(tmp_path / "bad")
    (wheel,) = (tmp_path / "bad/wheels").glob("xllamacpp*")
    wheel.unlink()
    wheel.write_bytes(b"no wheel")
    rewrite_hashes(tmp_path / "bad", manifest)
    with pytest.raises(Refusal, match="cannot be installed"):
        install(tmp_path / "bad", prefix, Line())
    assert said_by(prefix) == "workhorse 2"


def rewrite_hashes(bundle: Path, manifest: Manifest) -> None:
    """As a bundle would be that was made of a bad file."""
    said = document(bundle)
    for row in said["files"]:
        content = (bundle / row["path"]).read_bytes()
        row.update(sha256=hashlib.sha256(content).hexdigest(), n_bytes=len(content))
    assert len(said["files"]) == len(manifest.files)
    (bundle / MANIFEST).write_text(json.dumps(said))


def test_killed_in_the_middle_the_old_one_stays(
    bundle: Path, pip_wheel: Path, tmp_path: Path
) -> None:
    prefix = tmp_path / "p"
    install(bundle, prefix, Line())
    small_bundle(tmp_path / "new", pip_wheel, says="workhorse 2", model=b"GGUF model")
    for reached in ("app/*/pyvenv.cfg", "app/*/lib/*/*/pip", "app/*/complete"):
        kill_when(reached, tmp_path / "new", prefix)
        # Too late to be broken off is as good: then the new one is there, whole.
        assert said_by(prefix) in ("workhorse 1", "workhorse 2")
    install(tmp_path / "new", prefix, Line())
    assert said_by(prefix) == "workhorse 2"
    assert all((app / "complete").exists() for app in (prefix / "app").iterdir())


def kill_when(reached: str, bundle: Path, prefix: Path) -> None:
    """Kill an install, and what it has started, as soon as something appears."""
    old = {path: path.stat().st_ino for path in prefix.glob(reached)}
    command = [sys.executable, str(bundle / "install.py"), "--prefix", str(prefix)]
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        until_s = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < until_s:
            if any(old.get(path) != inode_of(path) for path in prefix.glob(reached)):
                break
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)


def inode_of(path: Path) -> int | None:
    with suppress(OSError):  # an install takes away what an earlier one left
        return path.stat().st_ino
    return None


def test_another_file_of_a_models_name_is_not_overwritten(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/model.gguf").write_bytes(b"mine")
    with pytest.raises(Refusal, match="is another file"):
        install(bundle, tmp_path, Line())
    assert (tmp_path / "models/model.gguf").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_folder_that_may_not_be_written_is_told(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = script(bundle, "install.py", "--prefix", str(tmp_path / "file" / "p"))
    assert done.returncode == 1
    assert "cannot be written: Not a directory" in done.stderr


def test_it_is_not_installed_into_itself(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "own")
    done = script(own, "install.py", "--prefix", ".", cwd=own)
    assert done.returncode == 2
    assert "lies in the bundle itself" in done.stderr
    assert script(own, "verify.py").returncode == 0


SYSTEM_PYTHON = Path(f"/usr/bin/python{PYTHON}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="this Python may be closed to others")
def test_another_user_is_told_where_he_may_not_write(bundle: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        opened = copied(bundle, Path(place, "b"))
        done = subprocess.run(
            [SYSTEM_PYTHON, opened / "install.py", "--prefix", "/usr/lib/w"],
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
            cwd="/",
        )
    assert done.returncode == 1, done.stderr
    assert "cannot be written: Permission denied" in done.stderr
    assert not Path("/usr/lib/w").exists()


def test_two_at_once_do_not_meet(bundle: Path, tmp_path: Path) -> None:
    with (
        carried_install.alone(tmp_path / "app"),
        pytest.raises(Refusal, match="Another process"),
    ):
        install(bundle, tmp_path, Line())


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk with room for 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_before_anything_is_written(bundle: Path, small_disk: Path) -> None:
    with pytest.raises(Refusal, match=r"left, .* needed"):
        install(bundle, small_disk / "p", Line())
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_disk_that_fills_up_leaves_no_half_file(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3_000_000))
    target = small_disk / "large"
    with pytest.raises(Refusal, match="The disk is full"), told_of_disk(target):
        place(tmp_path / "large", target, lambda _: None)
    assert not target.exists()


# A file system that takes no large files, as FAT32 does not.
SMALL_FILES = """
import resource, sys
from pathlib import Path
from workhorse.bundle.carried.files import place, told_of_disk
from workhorse.bundle.carried.words import Refusal
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with told_of_disk(Path(sys.argv[2])):
        place(Path(sys.argv[1]), Path(sys.argv[2]), lambda _: None, may_link=False)
except Refusal as refusal:
    print(refusal.next_step.en)
"""


def test_a_disk_for_small_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(8192))
    command = [sys.executable, "-c", SMALL_FILES, str(tmp_path / "large"), str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if not (tmp_path / "made").exists():  # a file system that shares blocks writes none
        assert done.stdout == "Write pieces: --output NAME.tar --split 4000M.\n"


@pytest.mark.parametrize("begun", [b"", b"12345", b"12x45678", b"123456789 and more"])
def test_a_copy_that_was_broken_off_becomes_whole(tmp_path: Path, begun: bytes) -> None:
    (tmp_path / "origin").write_bytes(b"123456789")
    (tmp_path / "made.part").write_bytes(begun)
    place(tmp_path / "origin", tmp_path / "made", lambda _: None, may_link=False)
    assert (tmp_path / "made").read_bytes() == b"123456789"
    assert not (tmp_path / "made.part").exists()


# --- engines -------------------------------------------------------------------------------------


def test_an_engine_of_another_content_and_the_same_name_gets_another(tmp_path: Path) -> None:
    """The installed workhorse takes it, after it has answered; this one stands in for it."""
    said: list[list[str]] = []
    for place_of, files in (("b/engines/one", ["new"]), ("p/engines/one", ["old"])):
        (tmp_path / place_of).mkdir(parents=True)
        (tmp_path / place_of / "manifest.json").write_text(json.dumps({"files": files}))
    part = Part("engine", "one", "1", "MIT", "test", ("engines/one/manifest.json",))
    ran = carried_install.run
    try:
        carried_install.run = lambda command, more, what: said.append([*command])  # type: ignore[assignment]
        name = install_engine(tmp_path / "b", tmp_path / "p", part, tmp_path)
        assert name.startswith("one-")
        assert said[0][-1] == name
        shutil.copy(tmp_path / "b/engines/one/manifest.json", tmp_path / "p/engines/one")
        assert install_engine(tmp_path / "b", tmp_path / "p", part, tmp_path) == "one"
        assert len(said) == 1
    finally:
        carried_install.run = ran
    assert files_of(tmp_path / "nothing") != files_of(tmp_path / "other")


def test_the_part_that_travels_needs_nothing_but_python() -> None:
    """Its modules import each other and the standard library."""
    for path in CARRIED.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in sys.stdlib_module_names | {"carried"}, (path.name, name)


def test_chinese_is_spoken(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_LANG", "zh_CN")
    damaged = copied(bundle, tmp_path / "b")
    (damaged / "more").touch()
    with pytest.raises(Refusal) as told:
        install(damaged, tmp_path / "p", Line())
    assert told.value.what.told() == "离线包与制作时不一致：多出：more。"
