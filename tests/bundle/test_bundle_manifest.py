"""What a bundle says of itself and of the machine it is for: read strictly, refused in order."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_bundles import document

from workhorse.bundle.carried import install as carried_install
from workhorse.bundle.carried.install import install
from workhorse.bundle.carried.manifest import Manifest, parse
from workhorse.bundle.carried.target import Here, refuse_unfit
from workhorse.bundle.carried.words import Line, Refusal

CARRIED = Path(carried_install.__file__).parent


PATHS = ["../x", "/etc/x", "a/../../x", "a//b", "./a", "", ".", "a\\b", "a\0b", "bundle.json"]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_of_a_manifest_leads_out(bundle: Path, path: str) -> None:
    said = document(bundle)
    old = said["files"][0]["path"]
    text = json.dumps(said).replace(json.dumps(old), json.dumps(path))
    with pytest.raises(Refusal, match="damaged or of another version"):
        parse(text.encode())


CHANGES: dict[str, Callable[[Any], object]] = {
    "another form": lambda said: said.update(form=2),
    "no files": lambda said: said.update(files=[], parts=[]),
    "a path twice": lambda said: said["files"].append(said["files"][0]),
    "a file of no part": lambda said: said["parts"].pop(),
    "no hash": lambda said: said["files"][0].update(sha256="1"),
    "a size below nothing": lambda said: said["files"][0].update(n_bytes=-1),
    "a size that is none": lambda said: said["files"][0].update(n_bytes=True),
    "a kind that is none": lambda said: said["parts"][0].update(kind="virus"),
    "a text for a list": lambda said: said["target"].update(pythons="3.11"),
    "too many files": lambda said: said.update(files=said["files"] * 20_000),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_manifest_that_means_harm_is_refused(bundle: Path, what: str) -> None:
    said = document(bundle)
    CHANGES[what](said)
    with pytest.raises(Refusal, match="damaged or of another version"):
        parse(json.dumps(said).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"1", b"{" + b" " * 9**8])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(Refusal, match="damaged or of another version"):
        parse(content[:9_000_000])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["form", "files", "parts", "target", "workhorse", "made_at"])


@given(st.dictionaries(KEYS, JSON))
def test_a_manifest_of_anything_is_refused_in_order(said: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        parse(json.dumps({"form": 1, **said}).encode())


def test_a_folder_that_is_no_bundle_is_told(tmp_path: Path) -> None:
    (folder := tmp_path / "other").mkdir()
    with pytest.raises(Refusal, match="is no bundle") as told:
        install(folder, tmp_path / "p", Line())
    assert told.value.exit_code == 2


# --- the machine ---------------------------------------------------------------------------------

FITS = Here("3.11", 64, "x86_64", "2.36", frozenset({"avx2"}), openmp=True)
HERE = {
    "another processor": ({"architecture": "aarch64"}, "x86_64, this machine and its Python are"),
    "32 bits": ({"bits": 32}, "32 bits"),
    "an old C library": ({"glibc": "2.12"}, "needs glibc 2.17, this system has glibc 2.12"),
    "another C library": ({"glibc": None}, "no glibc"),
    "another Python": ({"python": "3.14"}, "for Python 3.11, 3.12; this is 3.14"),
    "an old CPU": ({"flags": frozenset({"sse2"})}, "lacks: xllamacpp: avx2"),
}


def manifest_for(bundle: Path) -> Manifest:
    said = document(bundle)
    said["target"].update(architecture="x86_64", glibc="2.17", pythons=["3.11", "3.12"])
    for part in said["parts"]:
        if part["name"] == "xllamacpp":
            part["needs_flags"] = ["avx2"]
    return parse(json.dumps(said).encode())


@pytest.mark.parametrize("what", HERE)
def test_a_machine_that_it_cannot_run_on_is_told_why(bundle: Path, what: str) -> None:
    changes, words = HERE[what]
    fields = {name: getattr(FITS, name) for name in Here.__dataclass_fields__}
    with pytest.raises(Refusal, match=words) as told:
        refuse_unfit(manifest_for(bundle), Here(**{**fields, **changes}))
    assert told.value.exit_code == 3


def test_a_machine_that_fits_is_not_refused(bundle: Path) -> None:
    refuse_unfit(manifest_for(bundle), FITS)
    # 2.100 is newer than 2.17, and a CPU that tells no flags is tried.
    refuse_unfit(
        manifest_for(bundle), Here("3.12", 64, "x86_64", "2.100", frozenset(), openmp=True)
    )


def test_an_old_python_is_told_so() -> None:
    """The entry is read by any Python; this one says that it is an old one."""
    entry = CARRIED / "entry.py"
    ast.parse(entry.read_text("utf-8"), feature_version=(3, 4))
    code = "import sys; sys.version_info = (3, 9, 2); exec(open(sys.argv[1]).read())"
    done = subprocess.run([sys.executable, "-c", code, str(entry)], capture_output=True, text=True)
    assert done.returncode == 3
    assert "Python 3.11 or newer is needed; this is 3.9." in done.stderr
