"""A machine without a network: a bundle is made, carried, installed, and answers."""

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from no_network import NOT_ALLOWED
from small_bundles import PYTHON, repacked

from workhorse.bundle.carried.files import place as place_file
from workhorse.bundle.job import Wish, create, verify
from workhorse.bundle.order import order_for, pinned_for
from workhorse.bundle.wheels import read_lock
from workhorse.config import Places
from workhorse.machine.probe import probe
from workhorse.text import Text

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
HERE = Path(__file__).parent


class Quiet:
    """Tells nobody."""

    def stage(self, words: Text) -> None:
        pass

    def progress(self, done: int, total: int | None) -> None:
        pass


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, real_model: Path) -> Path:
    """A tar for this machine, with the packages that are installed here."""
    place = tmp_path_factory.mktemp("made")
    where = Places(place / "home")
    where.models.mkdir(parents=True)
    place_file(real_model.resolve(), where.models / real_model.name, lambda _: None)
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
    target = place / "carried.tar"
    made = create(Wish(order, None, (), target), where, Quiet(), lock)
    assert made.paths == (target,)
    assert sorted(path.name for path in place.iterdir()) == ["carried.tar", "home"]
    return target


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
        timeout=380,
    )  # fmt: skip
    if done.returncode == NOT_ALLOWED:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]).split(), done.stdout
    # The installed one checks bundles as well.
    command = [str(tmp_path / "p/bin/workhorse"), "bundle", "verify", str(carried)]
    subprocess.run(command, check=True, timeout=100)
