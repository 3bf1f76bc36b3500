"""NVIDIA's own compiler of the system: where it is, what it makes, and the words it takes."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.supply.cuda_ninja import CudaCompiler
from workhorse.engines.supply.cuda_recipe import CudaOrder, defines, include_words, link_options
from workhorse.errors import AppError
from workhorse.text import Text

ASK_TIMEOUT_S = 30
# nvcc's words in ggml/src/ggml-cuda/CMakeLists.txt, commit 0c1e57098.
_WORDS = ("-O3", "-std=c++17", "-use_fast_math", "-extended-lambda", "-Xcompiler", "-fPIC", "-w")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """One nvcc of the system."""

    path: Path
    release: tuple[int, int]  # of CUDA
    architectures: tuple[str, ...]  # sm_70 …

    @property
    def runtime(self) -> Path | None:
        """Its libcudart; None: not installed."""
        names = (f"libcudart.so.{self.release[0]}", "libcudart.so")
        root = self.path.resolve().parent.parent
        folders = (*(root / name for name in ("lib64", "lib")), Path("/usr/lib/x86_64-linux-gnu"))
        found = (folder / name for folder in folders for name in names)
        return next((path for path in found if path.is_file()), None)


def system_nvcc(order: CudaOrder, environ: Mapping[str, str]) -> Nvcc:
    """The newest nvcc of the system that makes code for all that is asked; AppError else."""
    there = sorted(find_nvcc(environ), key=lambda one: one.release, reverse=True)
    wanted = {one.name for one in order.architectures}
    for nvcc in there:
        if wanted <= set(nvcc.architectures) and nvcc.runtime is not None:
            return nvcc
    leave = Text(
        "Leave out --compiler system: the packaged compiler makes code for each of them.",
        "请不要加 --compiler system：打包的编译器可为每种架构生成代码。",
    )
    if not there:
        raise AppError(
            Text("The system has no nvcc that runs.", "系统中没有可运行的 nvcc。"), leave
        )
    newest = there[0]
    release = ".".join(map(str, newest.release))
    missing = ", ".join(sorted(wanted - set(newest.architectures))) or "libcudart"
    raise AppError(
        Text(
            f"nvcc {release} ({newest.path}) makes no code for {missing}.",
            f"nvcc {release}（{newest.path}）不支持 {missing}。",
        ),
        leave,
    )


def find_nvcc(environ: Mapping[str, str]) -> list[Nvcc]:
    """Each nvcc that runs: on the path, where CUDA_HOME or CUDA_PATH say, in /usr/local."""
    named = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    paths = [Path(folder) / "bin" / "nvcc" for folder in named]
    if on_path := shutil.which("nvcc", path=environ.get("PATH")):
        paths.append(Path(on_path))
    paths += sorted(Path("/usr/local").glob("cuda*/bin/nvcc"))
    distinct = {path.resolve(): path for path in paths if path.is_file()}
    return [nvcc for path in distinct.values() if (nvcc := asked_nvcc(path)) is not None]


def asked_nvcc(path: Path) -> Nvcc | None:
    """What this nvcc says of itself; None when it does not run or says nothing useful."""
    release = re.search(r"release (\d{1,3})\.(\d{1,2})", _said(path, "--version"))
    listed = re.findall(r"^compute_(\d{2,3})$", _said(path, "--list-gpu-arch"), re.MULTILINE)
    if release is None or not listed:
        return None
    return Nvcc(path, (int(release[1]), int(release[2])), tuple(f"sm_{one}" for one in listed))


def nvcc_compiler(
    order: CudaOrder, nvcc: Nvcc, cxx_compiler: str, own_headers: str, tree: str
) -> CudaCompiler:
    """The words for nvcc with the system's C++ compiler."""
    runtime = nvcc.runtime or Path(f"libcudart.so.{nvcc.release[0]}")
    code = [f"arch={one.ptx},code=[{one.code},{one.ptx}]" for one in order.architectures]
    return CudaCompiler(
        compile=(
            *(str(nvcc.path), "-ccbin", cxx_compiler, *_WORDS),
            *(word for one in code for word in ("-gencode", one)),
            *(f"-D{word}" for word in defines(order)),
            *include_words(tree),
            # Last: NVIDIA's own header of cuBLAS is found first where it is installed.
            *("-Xcompiler", f"-idirafter,{own_headers}", "-c"),
        ),
        # cuBLAS is the toolkit's own, wherever it was installed.
        link=(cxx_compiler, "-shared", *link_options(), f"-Wl,-rpath,{runtime.parent}"),
        stub=(cxx_compiler, "-shared"),
        runtime=str(runtime),
        major=nvcc.release[0],
    )


def _said(path: Path, *words: Sequence[str]) -> str:
    try:
        answer = subprocess.run(
            [str(path), *map(str, words)],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
