"""What is installed that runs models: CUDA toolkits and inference engines.

Found by names and small files alone: nothing is imported, and no engine is started. Reading the
GPU code out of large libraries and asking programs for their version takes seconds, so that is
done only when asked for (`deep`). A capture keeps the result as `software.json`.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from workhorse.machine.engine_places import EnginePlace, Surroundings, find_engines
from workhorse.machine.fatbin import GpuCode, merged, names_library, read_gpu_code
from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import words
from workhorse.records import CudaToolkit, EngineFound, Software

SOFTWARE_CAPTURE = "software.json"
_ENGINES_MAX = 64
_TOOLKITS_MAX = 32
# A library of 1 GB takes some 0.1 s from the page cache and 5 s from a hard disk.
_READ_WITHIN_S = 10.0
_SAY_WITHIN_S = 5.0
_SAID = {"llama.cpp": r"version: (\d+[^\n]{0,60})", "ollama": r"version is (\S{1,60})"}
_CODE_NAME = {"sass": r"sm_\d{2,3}[af]?", "ptx": r"compute_\d{2,3}[af]?"}
_HOME = re.compile(r"^/(?:home/[^/]+|root)(?=/|$)")


def read_software(
    files: HostFiles,
    *,
    deep: bool = False,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Software:
    """The CUDA toolkits and engines of this machine or of a captured one.

    `deep` asks programs for their version and reads the GPU code out of the engines' files: some
    seconds, at most about ten; what was not reached by then is None. Without it, and of a
    captured tree, GPU code is None. A capture's `software.json` counts before its files.
    `environment` is this process's own, unless given.
    """
    if not files.live:
        noted = from_note(files.text(SOFTWARE_CAPTURE))
        if noted is not None:
            return noted
    around = _surroundings(files, os.environ if environment is None else environment)
    engines: dict[tuple[str, str], EnginePlace] = {}
    for place in find_engines(files, around):
        if len(engines) >= _ENGINES_MAX:
            break
        engines.setdefault((place.name, _real(files, place.path)), place)
    until_s = clock() + _READ_WITHIN_S
    deep = deep and files.live
    return Software(
        toolkits=_toolkits(files, around),
        engines=tuple(_found(place, deep and clock() < until_s) for place in engines.values()),
    )


def to_note(software: Software) -> str:
    """The software as the text of a capture's `software.json`; home folders become `~`."""
    document = msgspec.to_builtins(software)
    for row in (*document["toolkits"], *document["engines"]):
        row["path"] = _HOME.sub("~", row["path"])
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def from_note(text: str | None) -> Software | None:
    """The software noted in a capture; None when there is no note or it cannot be read."""
    if text is None:
        return None
    try:
        noted = msgspec.json.decode(text, type=Software)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return Software(
        toolkits=tuple(
            CudaToolkit(words(row.path) or "?", words(row.version, longest=60))
            for row in noted.toolkits[:_TOOLKITS_MAX]
        ),
        engines=tuple(
            EngineFound(
                name=row.name,
                path=words(row.path) or "?",
                version=words(row.version, longest=60),
                sass=_code_names("sass", row.sass),
                ptx=_code_names("ptx", row.ptx),
            )
            for row in noted.engines[:_ENGINES_MAX]
        ),
    )


def _code_names(kind: str, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names is None or len(names) > 99:
        return None
    known = all(re.fullmatch(_CODE_NAME[kind], name, re.ASCII) for name in names)
    return names if known else None


def _surroundings(files: HostFiles, environment: Mapping[str, str]) -> Surroundings:
    if not files.live:
        return Surroundings(homes=("root", *(f"home/{name}" for name in files.names("home")[:16])))

    def places(*values: str | None) -> tuple[str, ...]:
        # What is not absolute depends on the folder we were started in.
        return tuple(v.strip("/") for v in values if v and v.startswith("/") and v.strip("/"))

    return Surroundings(
        homes=places(environment.get("HOME")),
        programs=places(*environment.get("PATH", "").split(":")),
        prefixes=places(
            environment.get("VIRTUAL_ENV"), environment.get("CONDA_PREFIX"), sys.prefix
        ),
    )


def _real(files: HostFiles, path: str) -> str:
    """One name for one file: /bin is a link to /usr/bin, lib64 of an environment to its lib."""
    return os.path.realpath(f"/{path}") if files.live else path.replace("/lib64/", "/lib/")


def _found(place: EnginePlace, deep: bool) -> EngineFound:
    code = _gpu_code(place) if deep else None
    version = place.version
    if deep and version is None:
        version = _said_version(place)
    return EngineFound(
        name=place.name,
        path=words(f"/{place.path}") or "?",
        version=version,
        sass=code.sass if code else None,
        ptx=code.ptx if code else None,
    )


def _gpu_code(place: EnginePlace) -> GpuCode | None:
    """What all libraries of an engine hold together; None when one of them is unreadable."""
    paths = [Path(f"/{library}") for library in place.libraries]
    if place.name == "llama.cpp":
        program = Path(f"/{place.path}")
        # Linked to libraries that lie somewhere else: what they hold is not known.
        if not paths and names_library(program, "libggml") is not False:
            return None
        # A script that starts the program holds none itself.
        if not paths or read_gpu_code(program) is not None:
            paths.append(program)
    codes = [read_gpu_code(path) for path in paths]
    known = [code for code in codes if code is not None]
    return merged(known) if known and len(known) == len(codes) else None


def _said_version(place: EnginePlace) -> str | None:
    """What `--version` prints, on either stream; the GPUs stay asleep."""
    try:
        told = Path(f"/{place.path}").stat()
        # Nobody else's program is started: we may be root, and it may be anybody's folder.
        if told.st_uid not in (0, os.geteuid()) or told.st_mode & 0o022:
            return None
        said = subprocess.run(
            [f"/{place.path}", "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SAY_WITHIN_S,
            env={**os.environ, "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        ).stdout[: 64 * 1024]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    match = re.search(_SAID[place.name], said.decode("utf-8", errors="replace"))
    return words(match[1], longest=60) if match else None


def _toolkits(files: HostFiles, around: Surroundings) -> tuple[CudaToolkit, ...]:
    """CUDA toolkits with their compiler or headers; several links to one count once."""
    found: dict[str, CudaToolkit] = {}
    for folder in _toolkit_folders(files):
        version = _toolkit_version(files, folder)
        if version is None and "nvcc" not in files.names(f"{folder}/bin"):
            continue  # the driver's compatibility libraries alone
        named = re.search(r"cuda-(\d{1,2}\.\d{1,2})", folder)
        version = version or (named[1] if named else None)
        # `cuda` and `cuda-13` are links to `cuda-13.0`: the name that says most is kept.
        key = _real(files, folder) if files.live else (version or folder)
        kept = found.get(key)
        if kept is None or len(folder) >= len(kept.path):
            found[key] = CudaToolkit(words(f"/{folder}") or "?", version)
    elsewhere = _compiler_elsewhere(files, around, found)
    known = [*found.values(), *([elsewhere] if elsewhere else [])]
    return tuple(sorted(known, key=lambda toolkit: toolkit.path)[:_TOOLKITS_MAX])


def _toolkit_folders(files: HostFiles) -> Iterator[str]:
    for base in ("usr/local", "opt", "opt/nvidia", "usr/lib"):
        for name in files.names(base):
            if re.match(r"cuda(-\d|$)", name):
                yield f"{base}/{name}"
    for machine in files.names("opt/nvidia/hpc_sdk")[:8]:
        for release in files.names(f"opt/nvidia/hpc_sdk/{machine}")[:16]:
            root = f"opt/nvidia/hpc_sdk/{machine}/{release}/cuda"
            yield from (f"{root}/{n}" for n in files.names(root) if re.match(r"\d", n))


def _toolkit_version(files: HostFiles, folder: str) -> str | None:
    """`12.4.1` of version.json, `10.2.89` of version.txt (up to 11.0), `13.0` of cuda.h."""
    document = files.text(f"{folder}/version.json")
    if document is not None:
        # NVIDIA's own file names the toolkit first; later rows are its parts.
        match = re.search(r'"cuda"\s*:\s*\{[^{}]{0,400}?"version"\s*:\s*"([\d.]{1,20})"', document)
        if match:
            return match[1]
    match = re.match(r"CUDA Version ([\d.]{1,20})", files.text(f"{folder}/version.txt") or "")
    return match[1] if match else _header_version(files.text(f"{folder}/include/cuda.h"))


def _header_version(header: str | None) -> str | None:
    match = re.search(r"(?m)^#define CUDA_VERSION (\d{4,5})\s*$", header or "")
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else None


def _compiler_elsewhere(
    files: HostFiles, around: Surroundings, found: Mapping[str, CudaToolkit]
) -> CudaToolkit | None:
    """An nvcc on the PATH that belongs to none of the toolkits: a distribution's, or conda's."""
    folder = next((f for f in around.programs if "nvcc" in files.names(f)), None)
    if files.live and folder is None:
        return None
    if folder is not None:
        real = _real(files, f"{folder}/nvcc")
        if any(real.startswith(f"{root}/") for root in found):
            return None
    match = re.search(r"release (\d{1,2}\.\d{1,2})", files.said("nvcc", "--version") or "")
    version = match[1] if match else None
    # A wrapper of a toolkit that was found says that toolkit's version.
    if any(f"{toolkit.version}.".startswith(f"{version}.") for toolkit in found.values()):
        return None
    if folder is not None:
        return CudaToolkit(words(f"/{folder}/nvcc") or "?", version)
    return CudaToolkit("nvcc", version) if version else None  # a capture: only the answer is known
