"""Engine builds made for tests: folders with a record, and a llama-server that answers."""

import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from workhorse.engines.supply.build import read_programs
from workhorse.engines.supply.manifest import Manifest, SourcePackage, write_manifest

# The fake engine behind llama-server's own words: it answers /health and /completion.
ANSWERS = f"""#!/bin/sh
case "$1" in
--help) printf '%s\\n' '-m, --model F' '--host H' '--port N' '-c, --ctx-size N' \\
   '-np, --parallel N';;
--version) echo 'version: 4711 (abcdef)';;
*) while [ $# -gt 0 ]; do [ "$1" = --port ] && port=$2; shift; done
   exec {sys.executable} -m workhorse.engines.fake --port "$port";;
esac
"""
DIES = """#!/bin/sh
case "$1" in
--help) printf '%s\\n' '-m, --model F' '--port N' '-c, --ctx-size N' '-np, --parallel N';;
--version) echo 'version: 1';;
*) kill -ILL $$;;
esac
"""


def manifest_of(folder: Path, **changes: Any) -> Manifest:
    """A record that fits the folder's files."""
    held = read_programs(folder)
    made = Manifest(
        name="made",
        engine="llama.cpp",
        source=SourcePackage("llama-cpp-python", "0.3.36", "0" * 64, "0.5.0-dev", "0c1e57098"),
        files=held.files,
        program="bin/llama-server",
        architecture="x86_64",
        cpu_variant="x64",
        needs_flags=(),
        sass=held.sass,
        ptx=held.ptx,
        compiler="clang version 22.1.8 (packaged)",
        options=("-DGGML_NATIVE=OFF",),
        openmp=False,
        bounded_wait=True,
        glibc=held.glibc,
        licences=("llama.cpp: MIT",),
        built_at="2026-11-30T12:00:00+00:00",
        minutes=1.0,
    )
    return replace(made, **changes)


def made_build(folder: Path, program: str | Path = ANSWERS, **changes: Any) -> Manifest:
    """A whole build in `folder`; its program is a script's text or a copy of a file."""
    target = folder / "bin" / "llama-server"
    target.parent.mkdir(parents=True)
    target.write_bytes(program.encode() if isinstance(program, str) else program.read_bytes())
    target.chmod(0o755)
    (folder / "licences").mkdir()
    (folder / "licences" / "llama.cpp.txt").write_text("MIT\n")
    manifest = manifest_of(folder, **changes)
    write_manifest(folder, manifest)
    return manifest


def packed(folder: Path, archive: Path) -> Path:
    """The folder as an archive, by the archive's name."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    zipped.write(path, path.relative_to(folder.parent).as_posix())
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, arcname=folder.name)
    return archive
