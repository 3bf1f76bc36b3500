"""Where inference engines lie: programs on the PATH and in usual folders, Python packages.

Names and small files only, so a captured tree can be searched as well. Paths are written without
their leading slash, as everywhere in `machine`.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, words

EngineName = Literal["llama.cpp", "vllm", "lmdeploy", "sglang", "ollama", "pytorch"]

# More are nobody's installation, and each costs a look at the disk.
_FOLDERS_MAX = 400
_LIBRARIES_MAX = 64

_SYSTEM_PROGRAMS = ("usr/local/bin", "usr/bin", "opt/ollama/bin", "opt/ollama", "snap/bin", "app")
_HOME_PROGRAMS = ("bin", ".local/bin")
# Where people unpack or clone llama.cpp.
_SYSTEM_SOURCES = ("opt", "srv", "usr/local", "usr/local/src", "usr/src", "workspace", "app")
_HOME_SOURCES = ("", "src", "git", "code", "projects", "Downloads")
# Beside a program: where its shared libraries are after a build and after an install.
_LIBRARY_FOLDERS = ("", "../lib", "../lib64", "../lib/ggml", "../lib/llama.cpp")

_SYSTEM_PREFIXES = ("usr", "usr/local", "opt/conda", "opt/venv", "venv", "workspace/venv")
_HOME_PREFIXES = (".local", "venv", ".venv", "env")
# Folders whose every entry may be a Python environment.
_SYSTEM_PREFIX_PARENTS = ("opt", "opt/conda/envs", "srv")
_CONDA = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")
_HOME_PREFIX_PARENTS = (
    *(f"{conda}/envs" for conda in _CONDA),
    ".virtualenvs",
    ".pyenv/versions",
    ".local/share/uv/tools",
    ".local/share/pipx/venvs",
)

# Python package: the engine, and which files hold its kernels. Those of sglang are a package of
# their own, in one folder for each generation in newer versions.
_PACKAGES: dict[str, tuple[EngineName, tuple[tuple[str, str], ...]]] = {
    "vllm": ("vllm", (("vllm", r"_C(_stable_libtorch)?\..*so"),)),
    "lmdeploy": ("lmdeploy", (("lmdeploy/lib", r".*turbomind.*\.so"),)),
    "sglang": (
        "sglang",
        (
            ("sgl_kernel", r".*\.so"),
            ("sgl_kernel/sm90", r".*\.so"),
            ("sgl_kernel/sm100", r".*\.so"),
        ),
    ),
    "torch": ("pytorch", (("torch/lib", r"libtorch(_cuda.*)?\.so"),)),
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where to look besides the usual folders: homes, the PATH, active Python environments."""

    homes: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """One engine: a program or a package's folder, and the files that can hold GPU code."""

    name: EngineName
    path: str
    version: str | None
    libraries: tuple[str, ...]


def find_engines(files: HostFiles, around: Surroundings) -> Iterator[EnginePlace]:
    """Every engine found; the same one more than once when several paths lead to it."""
    folders = _program_folders(files, around)
    for folder in folders:
        names = files.names(folder)
        if "llama-server" in names:
            yield _llama_server(files, folder)
        if "ollama" in names:
            yield _ollama(files, folder)
    for prefix in _prefixes(files, around):
        yield from _packages(files, prefix)


def _llama_server(files: HostFiles, folder: str) -> EnginePlace:
    triplets = [
        f"../lib/{name}" for name in files.names(_at(folder, "../lib")) if "-linux-" in name
    ]
    places = [*_LIBRARY_FOLDERS, *triplets, *(f"{triplet}/ggml" for triplet in triplets)]
    found = [
        library
        for place in places
        for library in _matching(files, _at(folder, place), r"libggml.*\.so[\d.]*")
    ]
    return EnginePlace("llama.cpp", f"{folder}/llama-server", None, _one_of_each(found))


def _ollama(files: HostFiles, folder: str) -> EnginePlace:
    # One folder for each CUDA version; up to 0.4 they were called runners.
    root = _at(folder, "../lib/ollama")
    parts = [root, *(f"{root}/{n}" for n in files.names(root))]
    parts += [f"{root}/runners/{n}" for n in files.names(f"{root}/runners")]
    found = [
        library
        for place in islice(parts, _LIBRARIES_MAX)
        for library in _matching(files, place, r"libggml[_-].*\.so[\d.]*|ollama_llama_server")
    ]
    return EnginePlace("ollama", f"{folder}/ollama", None, tuple(found[:_LIBRARIES_MAX]))


def _packages(files: HostFiles, prefix: str) -> Iterator[EnginePlace]:
    """The engines in a Python environment, by the metadata of its packages."""
    for lib in ("lib", "lib64"):
        for python in files.names(f"{prefix}/{lib}"):
            if not re.fullmatch(r"python3(\.\d{1,2})?", python, re.ASCII):
                continue
            for packages in ("site-packages", "dist-packages"):
                site = f"{prefix}/{lib}/{python}/{packages}"
                for name in files.names(site):
                    package, _, rest = name.partition("-")
                    if package in _PACKAGES and rest.endswith(".dist-info"):
                        yield _package(files, site, package, rest.removesuffix(".dist-info"))


def _package(files: HostFiles, site: str, package: str, version: str) -> EnginePlace:
    engine, places = _PACKAGES[package]
    told = fields(files.text(f"{site}/{package}-{version}.dist-info/METADATA")).get("Version")
    found = [
        library
        for folder, pattern in places
        for library in _matching(files, f"{site}/{folder}", pattern)
    ]
    return EnginePlace(
        engine,
        f"{site}/{package}",
        words(told or version, longest=60),
        tuple(found[:_LIBRARIES_MAX]),
    )


def _program_folders(files: HostFiles, around: Surroundings) -> list[str]:
    folders = [*around.programs, *_SYSTEM_PROGRAMS, *_below(around.homes, _HOME_PROGRAMS)]
    for base in (*_SYSTEM_SOURCES, *_below(around.homes, _HOME_SOURCES)):
        for name in files.names(base):
            if "llama" in name.lower():
                root = _at(base, name)
                builds = [n for n in files.names(root) if n.startswith("build")]
                folders += [root, f"{root}/bin", *(f"{root}/{build}/bin" for build in builds)]
    return list(islice(dict.fromkeys(folders), _FOLDERS_MAX))


def _prefixes(files: HostFiles, around: Surroundings) -> list[str]:
    prefixes = [*around.prefixes, *_SYSTEM_PREFIXES, *_below(around.homes, _HOME_PREFIXES)]
    prefixes += _below(around.homes, _CONDA)
    for parent in (*_SYSTEM_PREFIX_PARENTS, *_below(around.homes, _HOME_PREFIX_PARENTS)):
        prefixes += [f"{parent}/{name}" for name in files.names(parent)]
    # A project's own environment lies in the project's folder.
    for base in ("opt", "srv", *around.homes):
        projects = [name for name in files.names(base) if not name.startswith(".")]
        prefixes += [f"{base}/{name}/{venv}" for name in projects for venv in (".venv", "venv")]
    return list(islice(dict.fromkeys(prefixes), _FOLDERS_MAX))


def _matching(files: HostFiles, folder: str, pattern: str) -> list[str]:
    return [f"{folder}/{name}" for name in files.names(folder) if re.fullmatch(pattern, name)]


def _one_of_each(libraries: list[str]) -> tuple[str, ...]:
    """Without the second and third name of one library (`.so`, `.so.0`, `.so.0.9.4`)."""
    kept: dict[str, str] = {}
    for library in sorted(libraries, key=len):
        kept.setdefault(library.partition(".so")[0], library)
    return tuple(islice(kept.values(), _LIBRARIES_MAX))


def _below(homes: Iterable[str], folders: Iterable[str]) -> list[str]:
    return [_at(home, folder) for home in homes for folder in folders]


def _at(folder: str, name: str) -> str:
    return posixpath.normpath(f"{folder}/{name}")
