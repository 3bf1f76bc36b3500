"""scripts/setup, up and test: every way in which a bare machine can disappoint them.

The scripts run as they are, in a folder of their own. Where a Python is needed that cannot be
had here (too old, without venv), a small program stands in for it; pip itself is the real one.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = (
    "awk basename cat chmod cut date df dirname env flock grep head id ls mkdir mv rm sed sh"
    " sha256sum sort tail touch uname"
)


class Checkout:
    """A copy of the scripts with a PATH that holds basic commands and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.bin = folder / "bin"
        self.venv = self.root / ".venv"
        self.calls = folder / "calls"
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        shutil.copytree(ROOT / "requirements", self.root / "requirements")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.bin.mkdir()
        for tool in TOOLS.split():
            found = shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin")
            if found:
                (self.bin / tool).symlink_to(found)

    def program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def stand_in(self, name: str, script: str) -> None:
        self.program(self.bin / name, script)

    def working_python(self, version: str = "3.11.9") -> None:
        """A Python that makes a .venv and installs anything at once; its calls are written down."""
        log = f'echo "$*" >>"{self.calls}"'
        answer = f"case $* in *version_info*) echo {version} ;; *HOST_GNU_TYPE*) exit 1 ;; esac"
        inner = f"{log}\n{answer}"
        make = f'mkdir -p "$3/bin" && cat >"$3/bin/python" <<"X"\n#!/bin/sh\n{inner}\nX\n'
        make += 'chmod +x "$3/bin/python"'
        self.stand_in("python3", f'{log}\ncase $* in "-m venv "*) {make} ;; esac\n{answer}')

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(self.root / "scripts" / script), *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.root)} | env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=600,
        )

    def pip_runs(self) -> int:
        text = self.calls.read_text(encoding="utf-8") if self.calls.exists() else ""
        return sum("-m pip install" in line for line in text.splitlines())


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """What a refusal said: two lines, the sentence and the line to type, no trace of the shell."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Setting up")]
    assert done.returncode == 1, done.stderr
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("workhorse"), done.stderr
    assert lines[1].startswith("  → "), done.stderr
    return "\n".join(lines)


# --- the machine ---------------------------------------------------------------------------------


def test_no_python_at_all(checkout: Checkout) -> None:
    assert "found none" in refused(checkout.run("up"))


def test_only_older_pythons_are_named_with_the_line_to_type(checkout: Checkout) -> None:
    checkout.stand_in("python3", "echo 3.9.2")
    checkout.stand_in("apt-cache", 'case $2 in python3.12) echo "Version: 3.12.3-1ubuntu1" ;; esac')
    said = refused(checkout.run("up"))
    assert "found python3 3.9.2" in said
    assert "apt-get install python3.12 python3.12-venv" in said


def test_older_python_without_apt(checkout: Checkout) -> None:
    checkout.stand_in("python3", "echo 3.10.12")
    assert "PYTHON=/path/to/python3.11 sh scripts/test" in refused(checkout.run("test"))


def test_a_newer_python_beside_an_older_one_is_taken(checkout: Checkout) -> None:
    checkout.working_python("3.12.3")
    (checkout.bin / "python3").rename(checkout.bin / "python3.12")
    checkout.stand_in("python3", "echo 3.9.2")
    done = checkout.run("setup", "run")
    assert done.returncode == 0, done.stderr


def test_the_chosen_python_is_not_replaced_by_another(checkout: Checkout) -> None:
    checkout.working_python()
    said = refused(checkout.run("up", PYTHON="/nowhere/python3"))
    assert "PYTHON=/nowhere/python3" in said


def test_chinese_readers_read_chinese(checkout: Checkout) -> None:
    checkout.stand_in("python3", "echo 3.9.2")
    assert "需要 Python 3.11 或更新版本；找到：python3 3.9.2" in refused(
        checkout.run("up", LANG="zh_CN.UTF-8")
    )


def test_missing_venv_module_names_the_package(checkout: Checkout) -> None:
    answers = 'case $* in *version_info*) echo 3.11.2 ;; *"import venv"*) exit 1 ;; esac'
    checkout.stand_in("python3", answers)
    assert "apt-get install python3.11-venv" in refused(checkout.run("up"))


@pytest.mark.parametrize("machine", ["Linux ppc64le", "Linux i686", "Darwin arm64"])
def test_other_processors_and_systems(checkout: Checkout, machine: str) -> None:
    checkout.working_python()
    (checkout.bin / "uname").unlink()
    kernel, processor = machine.split()
    checkout.stand_in("uname", f"case $1 in -s) echo {kernel} ;; -m) echo {processor} ;; esac")
    assert machine in refused(checkout.run("up"))


def test_another_c_library(checkout: Checkout) -> None:
    answers = "case $* in *version_info*) echo 3.12.3 ;; *HOST_GNU_TYPE*) exit 0 ;; esac"
    checkout.stand_in("python3", answers)
    assert "musl" in refused(checkout.run("up"))


def test_a_full_disk_is_seen_before_anything_is_written(checkout: Checkout) -> None:
    checkout.working_python()
    (checkout.bin / "df").unlink()
    checkout.stand_in("df", r'printf "head\n/dev/x 1000000 900000 100000 90%% /\n"')
    assert "97 MB free" in refused(checkout.run("up"))
    assert not checkout.venv.exists()


# --- what is there already -----------------------------------------------------------------------


def test_a_venv_of_the_user_is_left_alone(checkout: Checkout) -> None:
    checkout.working_python()
    (checkout.venv / "bin").mkdir(parents=True)
    (checkout.venv / "mine").write_text("precious", encoding="utf-8")
    said = refused(checkout.run("up"))
    assert f"mv {checkout.venv} {checkout.venv}.old" in said
    assert (checkout.venv / "mine").read_text(encoding="utf-8") == "precious"


def test_the_second_start_runs_no_pip(checkout: Checkout) -> None:
    checkout.working_python()
    assert checkout.run("setup", "run").returncode == 0
    first = checkout.pip_runs()
    second = checkout.run("setup", "run")
    assert (second.returncode, second.stderr) == (0, "")
    assert (first, checkout.pip_runs()) == (2, 2)


def test_what_is_set_up_for_tests_serves_up_as_well(checkout: Checkout) -> None:
    checkout.working_python()
    assert checkout.run("setup", "dev").returncode == 0
    assert checkout.run("setup", "run").stderr == ""
    assert checkout.pip_runs() == 2


def test_a_changed_lock_is_installed_into_the_same_venv(checkout: Checkout) -> None:
    checkout.working_python()
    checkout.run("setup", "run")
    (checkout.venv / "kept").touch()
    with (checkout.root / "requirements/run.lock").open("a", encoding="utf-8") as lock:
        lock.write("# changed\n")
    assert checkout.run("setup", "run").returncode == 0
    assert checkout.pip_runs() == 4
    assert (checkout.venv / "kept").exists()


def test_a_half_made_venv_is_made_anew(checkout: Checkout) -> None:
    checkout.working_python()
    checkout.run("setup", "run")
    (checkout.venv / "stamp-run").unlink()  # what an interrupted run leaves: all but the stamp
    (checkout.venv / "half-written").touch()
    assert checkout.run("setup", "run").returncode == 0
    assert not (checkout.venv / "half-written").exists()


def test_a_venv_whose_python_went_away_is_made_anew(checkout: Checkout) -> None:
    checkout.working_python()
    checkout.run("setup", "run")
    (checkout.venv / "bin/python").unlink()
    assert checkout.run("setup", "run").returncode == 0
    assert (checkout.venv / "bin/python").exists()


def test_another_python_makes_it_anew(checkout: Checkout) -> None:
    checkout.working_python("3.11.9")
    checkout.run("setup", "run")
    (checkout.venv / "old").touch()
    checkout.working_python("3.13.1")
    assert checkout.run("setup", "run", PYTHON="python3").returncode == 0
    assert not (checkout.venv / "old").exists()


# --- the real pip --------------------------------------------------------------------------------


@pytest.fixture
def real(checkout: Checkout) -> Checkout:
    """The checkout with this Python and a lock of one small package."""
    checkout.stand_in("python3", f'exec "{sys.executable}" "$@"')
    (checkout.root / "requirements/run.lock").write_text(
        f"tiny==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8"
    )
    return checkout


def tiny_wheel(folder: Path) -> str:
    """A wheel of nothing; its hash."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        about = "tiny-1.0.dist-info/"
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(about + "RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_no_network_asks_for_a_mirror(real: Checkout) -> None:
    # Port 9 of loopback: nobody listens there, so the connection is refused at once.
    closed = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    done = real.run("up", PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1", **closed)
    assert "PIP_INDEX_URL=https://YOUR-MIRROR/simple sh scripts/up" in refused(done)
    assert not (real.venv / "stamp-run").exists()


def test_a_file_with_another_hash_is_not_installed(real: Checkout, tmp_path: Path) -> None:
    tiny_wheel(tmp_path)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    said = refused(real.run("up", PIP_CONFIG_FILE=os.devnull, **offline))
    assert "not the file that the lock names" in said
    assert not list(real.venv.glob("lib/python*/site-packages/tiny*"))


def test_an_unknown_failure_shows_the_last_words_and_the_log(
    real: Checkout, tmp_path: Path
) -> None:
    digest = tiny_wheel(tmp_path)
    lock = f"tiny==1.0 --hash=sha256:{digest}\n"
    (real.root / "requirements/run.lock").write_text(lock, encoding="utf-8")
    # The install of workhorse itself fails here: this copy has neither sources nor hatchling.
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = real.run("up", PIP_CONFIG_FILE=os.devnull, **offline)
    assert done.returncode == 1
    assert f"less {real.venv}/setup.log" in done.stderr
    assert list(real.venv.glob("lib/python*/site-packages/tiny*"))


# --- starting ------------------------------------------------------------------------------------


def test_up_becomes_workhorse_with_the_arguments(checkout: Checkout) -> None:
    checkout.working_python()
    checkout.run("setup", "run")
    checkout.program(checkout.venv / "bin/workhorse", 'echo "$$ $*"; exit 3')
    with subprocess.Popen(
        ["/bin/sh", str(checkout.root / "scripts/up"), "my model.gguf", "--dry-run"],
        env={"PATH": str(checkout.bin)},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        said = started.communicate(timeout=300)[0]
    # The same process id: a signal to the script is a signal to workhorse.
    assert said == f"{started.pid} up my model.gguf --dry-run\n"
    assert started.returncode == 3


def test_test_becomes_pytest_in_the_checkout(checkout: Checkout) -> None:
    checkout.working_python()
    checkout.run("setup", "dev")
    checkout.program(checkout.venv / "bin/python", 'echo "$PWD $*"')
    done = checkout.run("test", "-k", "one")
    assert done.stdout.splitlines()[-1] == f"{checkout.root} -m pytest -k one"


def test_every_script_is_executable() -> None:
    for script in [*(ROOT / "scripts").iterdir(), ROOT / ".ci/run"]:
        shebang = script.is_file() and script.read_bytes().startswith(b"#!")
        assert not shebang or os.access(script, os.X_OK), script
