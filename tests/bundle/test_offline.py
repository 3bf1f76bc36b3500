"""A machine without a network: a bundle is made, carried, installed, and answers."""

import hashlib
import json
import subprocess
import sys
import tarfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from no_network import NOT_ALLOWED
from small_bundles import PYTHON, repacked

from workhorse.bundle.carried.files import place as place_file
from workhorse.bundle.job import verify
from workhorse.bundle.order import order_for, pinned_for
from workhorse.bundle.wheels import read_lock
from workhorse.cli import main
from workhorse.config import Places
from workhorse.machine.probe import probe
from workhorse.models.embedded import embedded_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    """A tar for this machine, with the packages that are installed here."""
    place = tmp_path_factory.mktemp("made")
    where = Places(place / "home")
    model = embedded_model(data_dir)
    place_file(model, where.models / model.name, lambda _: None)
    target = place / "carried.tar"
    words = ["--for", "here", "--python", PYTHON, "--output", str(target), "--json"]
    with pytest.MonkeyPatch.context() as patched:
        lock = lock_of_what_is_here(where)
        patched.setattr("workhorse.bundle.job.read_lock", lambda extras: lock)
        patched.setenv("WORKHORSE_HOME", str(where.data))
        said = StringIO()
        with redirect_stdout(said):
            assert main(["bundle", "create", *words]) == 0
    assert json.loads(said.getvalue())["paths"] == [str(target)]
    assert sorted(path.name for path in place.iterdir()) == ["carried.tar", "home"]
    return target


def lock_of_what_is_here(where: Places) -> str:
    """A lock whose packages are in the store already: nothing is downloaded for a test."""
    order = order_for(probe(measure_s=0), (PYTHON,))
    store = where.data / "bundles/wheels" / f"{order.architecture}-glibc{order.glibc}-py{PYTHON}"
    store.mkdir(parents=True)
    lines = []
    for package in pinned_for(read_lock(), PYTHON):
        wheel = repacked(package.name, store)
        version = wheel.name.split("-")[1]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{package.name}=={version} \\\n    --hash=sha256:{digest}")
    lock = "\n".join(lines) + "\n"
    whole = "\n".join(package.line() for package in pinned_for(lock, PYTHON))
    (store / "whole").write_text(hashlib.sha256(whole.encode()).hexdigest())
    return lock


def test_the_tar_is_right_and_tells_of_each_part(carried: Path) -> None:
    manifest, difference = verify(carried, lambda _done, _total: None)
    assert not difference
    kinds = {part.kind: part for part in manifest.parts}
    assert {"wheel", "model", "library", "script"} == kinds.keys()
    assert kinds["model"].licence == "Apache-2.0"
    assert all(part.licence and part.version and part.source for part in manifest.parts)
    names = {part.name for part in manifest.of_kind("wheel")}
    assert {"workhorse", "xllamacpp", "pip", "aiohttp"} <= names


def test_without_a_network_it_is_installed_and_answers(carried: Path, tmp_path: Path) -> None:
    with tarfile.open(carried) as tar:
        tar.extractall(tmp_path, filter="data")
    done = subprocess.run(
        [sys.executable, str(HERE / "no_network.py"), sys.executable, str(HERE / "offline_user.py"),
         str(tmp_path / "carried"), str(tmp_path / "p")],
        capture_output=True,
        text=True,
        timeout=1200,
    )  # fmt: skip
    if done.returncode == NOT_ALLOWED:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]).split(), done.stdout
    # The installed one checks bundles as well.
    command = [str(tmp_path / "p/bin/workhorse"), "bundle", "verify", str(carried)]
    subprocess.run(command, check=True, timeout=300)
