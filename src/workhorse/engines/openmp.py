"""libgomp.so.1, which the embedded engine needs, also where the system has none.

A minimal Debian lacks it. It is then taken out of a wheel (see knowledge/packaged_libraries.toml)
and kept beside the installed packages, in `lib/workhorse-openmp` of the virtual environment.
The engine's child finds it through `LD_LIBRARY_PATH`; nothing else on the system sees it.
"""

import ctypes
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from workhorse.errors import AppError
from workhorse.knowledge.packaged_libraries import PackagedLibrary, packaged_library
from workhorse.models.pip_source import PIP, WANTED
from workhorse.text import Text, same

LIBRARY = "libgomp.so.1"
INSTALL = "apt-get install libgomp1"  # the package's name on Debian and Ubuntu


def system_has_openmp() -> bool:
    """Whether the loader finds libgomp.so.1 by itself."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def openmp_library_dir(prefix: Path | None = None) -> Path | None:
    """The folder to put into the engine's LD_LIBRARY_PATH.

    None when the system has the library, or when it is missing and was not installed.
    `prefix` is the virtual environment, by default the one we run in.
    """
    folder = installed_dir(prefix)
    if system_has_openmp() or not (folder / LIBRARY).is_file():
        return None
    return folder


def installed_dir(prefix: Path | None = None) -> Path:
    """Where our copy of the library is or would be."""
    return (prefix or Path(sys.prefix)) / "lib" / "workhorse-openmp"


def ensure_openmp() -> Path | None:
    """`openmp_library_dir()`, after fetching the library if this system has none.

    Raises `AppError` when it is missing and cannot be fetched or stored.
    """
    folder = installed_dir()
    if system_has_openmp():
        return None
    if not (folder / LIBRARY).is_file():
        library = packaged_library(LIBRARY, platform.machine())
        if library is None:
            raise missing(f"no package has it for {platform.machine()}")
        fetch(library, folder)
    return folder


def fetch(library: PackagedLibrary, folder: Path) -> None:
    """Download the wheel that carries `library`, check its hash, put the library into `folder`."""
    try:
        with tempfile.TemporaryDirectory(prefix="workhorse-") as scratch:
            wheel = download(library, Path(scratch))
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{library.name}.part"
            with zipfile.ZipFile(wheel) as archive:
                part.write_bytes(archive.read(library.member))
            part.replace(folder / library.name)  # whole or not at all
    except OSError as error:
        raise missing(str(error)) from error


def download(library: PackagedLibrary, scratch: Path) -> Path:
    """The wheel, in `scratch`, through pip: the user's mirror, proxy and cache apply."""
    wanted = scratch / "wanted.txt"
    pin = f"{library.package}=={library.version} --hash=sha256:{library.wheel_sha256}\n"
    wanted.write_text(pin, encoding="utf-8")
    command = [*PIP, "download", *WANTED, "--quiet", "--require-hashes", "-r", str(wanted)]
    # One wheel a platform serves every Python: only the library in it is used.
    command += ["--python-version", "3.11", "--platform", library.platform, "-d", str(scratch)]
    pip = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or not wheels:
        last = (pip.stderr or pip.stdout).strip().splitlines()[-1:]
        raise missing(last[0] if last else f"pip returned {pip.returncode}")
    return wheels[0]


def missing(cause: str) -> AppError:
    """The library is neither on the system nor to be had."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return AppError(
        Text(
            f"{LIBRARY}, which the engine needs, is missing here: {cause}",
            f"本机缺少引擎所需的 {LIBRARY}：{cause}",
        ),
        same(sudo + INSTALL),
    )
