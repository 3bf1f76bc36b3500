"""Bundles for tests: a small one with a workhorse that only tells its version, and the real one."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from workhorse.bundle.assemble import assemble
from workhorse.bundle.carried.manifest import MANIFEST, Manifest, Part
from workhorse.bundle.order import Order
from workhorse.bundle.sources import Source, script_source

PYTHON = "{}.{}".format(*sys.version_info)
ARCHITECTURE = os.uname().machine
ORDER = Order(ARCHITECTURE, "2.17", True, "CPU of the tests", (PYTHON,))
DEADLINE_S = 300.0


def write_wheel(path: Path, files: dict[str, bytes]) -> Path:
    """A wheel with these files and its record."""
    info = "-".join(path.name.split("-")[:2]) + ".dist-info"
    record = []
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return path


def plain_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any") -> Path:
    """A wheel that says who it is and holds nothing else."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
    about = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    return write_wheel(
        folder / f"{name}-{version}-{tag}.whl",
        {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": about.encode()},
    )


def repacked(name: str, folder: Path) -> Path:
    """The wheel of a package as it is installed here: nothing is downloaded for a test."""
    found = distribution(name)
    tag = next(
        line.partition(": ")[2]
        for line in (found.read_text("WHEEL") or "").splitlines()
        if line.startswith("Tag: ")
    )
    files = contents(found)
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA"))
    return write_wheel(folder / f"{info.removesuffix('.dist-info')}-{tag}.whl", files)


def contents(found: Distribution) -> dict[str, bytes]:
    """The files of an installed package without its scripts, caches and record."""
    return {
        str(file): Path(str(found.locate_file(file))).read_bytes()
        for file in found.files or ()
        if ".." not in file.parts
        and "__pycache__" not in file.parts
        and file.name not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    }


def wheel_of(path: Path, name: str, version: str, needs: tuple[str, ...] = ()) -> Source:
    """A wheel as a part of a bundle."""
    place = f"wheels/{path.name}"
    part = Part("wheel", name, version, "MIT", "test", (place,), (PYTHON,), needs)
    return Source(part, ((place, path),))


def small_bundle(
    folder: Path, pip_wheel: Path, *, says: str = "workhorse 1", model: bytes = b"GGUF model"
) -> Manifest:
    """A whole bundle whose workhorse prints `says`, with one engine that any CPU runs."""
    made = folder.parent / f"{folder.name}-origin"
    made.mkdir()
    info = "workhorse-1.dist-info"
    own = write_wheel(
        made / "workhorse-1-py3-none-any.whl",
        {
            "workhorse/__init__.py": b"",
            "workhorse/__main__.py": f"print({says!r})\n".encode(),
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: workhorse\nVersion: 1\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        },
    )
    engine = plain_wheel(made, "xllamacpp", "1")
    (made / "model.gguf").write_bytes(model)
    sources = [
        script_source("1"),
        wheel_of(own, "workhorse", "1"),
        wheel_of(engine, "xllamacpp", "1"),
        wheel_of(pip_wheel, "pip", pip_wheel.name.split("-")[1]),
        Source(
            Part("model", "m", "F16", "MIT", "test", ("models/model.gguf",)),
            (("models/model.gguf", made / "model.gguf"),),
        ),
    ]
    return assemble(folder, sources, ORDER, lambda _done, _total: None)


def script(
    bundle: Path, name: str, *words: str, **more: object
) -> subprocess.CompletedProcess[str]:
    """Run one of a bundle's two programs."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, str(bundle / name), *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "WORKHORSE_LANG": "en"},
        **more,
    )


def said_by(prefix: Path) -> str:
    """What the installed command prints."""
    command = [str(prefix / "bin" / "workhorse"), "--version"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout.strip()


def copied(bundle: Path, target: Path) -> Path:
    """A copy of a bundle to damage."""
    return Path(shutil.copytree(bundle, target))


def document(bundle: Path) -> Any:
    """A bundle's manifest, to be changed."""
    return json.loads((bundle / MANIFEST).read_bytes())
