"""Toolkits and engines: found in trees like those that people have."""

import json
import os
import shutil
from pathlib import Path

import pytest
from elf_files import container, elf

from workhorse.machine.files import DirectoryFiles, PackedFiles
from workhorse.machine.software import from_note, read_software, to_note
from workhorse.records import CudaToolkit, EngineFound, Software

CODE = Path(__file__).parent / "gpu_code"
OLD_LIBRARY = elf({b".nv_fatbin": (CODE / "old_cards.fatbin").read_bytes()})
PLAIN = elf({b".text": b""})
OLD = (("sm_50", "sm_60", "sm_70"), ("compute_70",))
VERSION_JSON = {
    "cuda": {"name": "CUDA SDK", "version": "12.4.1"},
    "nvidia_driver": {"name": "NVIDIA Linux Driver", "version": "550.54.15"},
}


def of(software: Software, name: str, below: Path | None = None) -> list[EngineFound]:
    """The engines of that name, on a live machine only those that the test put there."""
    start = "" if below is None else str(below)
    return [e for e in software.engines if e.name == name and e.path.startswith(start)]


def put(path: Path, content: bytes | str = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_package(site: Path, name: str, version: str) -> None:
    put(site / name / "__init__.py")
    put(
        site / f"{name}-{version}.dist-info/METADATA",
        f"Metadata-Version: 2.1\nVersion: {version}\n",
    )


def here(tmp_path: Path, *, deep: bool = True) -> Software:
    """The software of this machine, with a home and a PATH of our own."""
    home = tmp_path / "home"
    environment = {"HOME": str(home), "PATH": f"{tmp_path / 'bin'}:relative:"}
    # A clock that stands still: reading may take as long as this machine needs.
    return read_software(
        DirectoryFiles(Path("/")), deep=deep, environment=environment, clock=lambda: 0.0
    )


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so may a program that is asked for its version."""
    monkeypatch.setattr("workhorse.machine.software._SAY_WITHIN_S", 120.0)


def test_toolkits_of_all_ages() -> None:
    files = PackedFiles(
        {
            "usr/local/cuda/version.json": VERSION_JSON,
            "usr/local/cuda-12/version.json": VERSION_JSON,
            "usr/local/cuda-12.4/version.json": VERSION_JSON,
            "usr/local/cuda-10.2/version.txt": "CUDA Version 10.2.89\n",
            "usr/local/cuda-11.8/bin/nvcc": "",
            "usr/local/cuda-12.9/compat/libcuda.so": "",
            "opt/cuda/include/cuda.h": "x\n#define CUDA_VERSION 13000\n",
            "opt/nvidia/hpc_sdk/Linux_x86_64/24.3/cuda/12.3/bin/nvcc": "",
            "usr/local/cudalike/version.txt": "CUDA Version 9.0\n",
        }
    )
    assert read_software(files).toolkits == (
        CudaToolkit("/opt/cuda", "13.0"),
        CudaToolkit("/opt/nvidia/hpc_sdk/Linux_x86_64/24.3/cuda/12.3", None),
        CudaToolkit("/usr/local/cuda-10.2", "10.2.89"),
        CudaToolkit("/usr/local/cuda-11.8", "11.8"),
        CudaToolkit("/usr/local/cuda-12.4", "12.4.1"),
    )


def test_a_compiler_that_belongs_to_no_toolkit_folder() -> None:
    said = "Cuda compilation tools, release 12.0, V12.0.140\n"
    assert read_software(PackedFiles({"commands/nvcc_--version.txt": said})).toolkits == (
        CudaToolkit("nvcc", "12.0"),
    )
    folder = {"usr/local/cuda-12.0/version.json": {"cuda": {"version": "12.0.1"}}}
    known = read_software(PackedFiles({"commands/nvcc_--version.txt": said} | folder))
    assert known.toolkits == (CudaToolkit("/usr/local/cuda-12.0", "12.0.1"),)


def test_this_machine_and_nvcc_agree() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA toolkit here")
    said = DirectoryFiles(Path("/")).said("nvcc", "--version") or ""
    versions = [t.version for t in read_software(DirectoryFiles(Path("/"))).toolkits]
    assert any(v and f"release {'.'.join(v.split('.')[:2])}," in said for v in versions)


def test_packages_by_their_metadata_alone(tmp_path: Path) -> None:
    site = tmp_path / "home/proj/.venv/lib/python3.10/site-packages"
    for name, version in (("vllm", "0.6.3.post1"), ("lmdeploy", "0.7.0"), ("sglang", "0.4.1")):
        put_package(site, name, version)
    put_package(site, "torch", "2.4.0+cu121")
    put_package(site, "torchvision", "0.19.0")
    put(site / "torch/__init__.py", "raise SystemExit('imported')")
    # A link to the same environment is the same engine.
    (tmp_path / "home/proj/.venv/lib64").symlink_to("lib")
    found = here(tmp_path, deep=False).engines
    assert {(e.name, e.version) for e in found if e.path.startswith(str(site))} == {
        ("vllm", "0.6.3.post1"),
        ("lmdeploy", "0.7.0"),
        ("sglang", "0.4.1"),
        ("pytorch", "2.4.0+cu121"),
    }
    assert len([e for e in found if e.path.startswith(str(tmp_path))]) == 4
    assert {(e.sass, e.ptx) for e in found} <= {(None, None)}


def test_the_gpu_code_of_packages(tmp_path: Path) -> None:
    site = tmp_path / "home/miniconda3/envs/llm/lib/python3.11/site-packages"
    for name in ("vllm", "lmdeploy", "sglang", "torch"):
        put_package(site, name, "1.0")
    put(site / "vllm/_C.abi3.so", OLD_LIBRARY)
    put(site / "vllm/_C_stable_libtorch.abi3.so", elf({b".nv_fatbin": container((2, 60, 0))}))
    put(site / "vllm/_Cother.so", elf({b".nv_fatbin": container((2, 90, 0))}))
    put(site / "lmdeploy/lib/_turbomind.cpython-311-x86_64-linux-gnu.so", OLD_LIBRARY[:900])
    put(site / "torch/lib/libtorch.so", PLAIN)
    put(site / "torch/lib/libtorch_cuda_cu.so", elf({b".nv_fatbin": container((2, 37, 0))}))
    put(site / "torch/lib/libtorch_cuda_cpp.so", elf({b".nv_fatbin": container((1, 70, 0))}))
    software = here(tmp_path)
    code = {e.name: (e.sass, e.ptx) for e in software.engines if e.path.startswith(str(site))}
    assert code == {
        "vllm": OLD,
        "lmdeploy": (None, None),  # cut short
        "sglang": (None, None),  # its kernels are not there
        "pytorch": (("sm_37",), ("compute_70",)),
    }


def test_a_build_for_the_cpu_holds_no_gpu_code(tmp_path: Path) -> None:
    site = tmp_path / "home/.venv/lib/python3.12/site-packages"
    put_package(site, "torch", "2.6.0+cpu")
    put(site / "torch/lib/libtorch.so", PLAIN)
    (torch,) = of(here(tmp_path), "pytorch", tmp_path)
    assert (torch.version, torch.sass, torch.ptx) == ("2.6.0+cpu", (), ())


def test_llama_server_and_its_libraries(tmp_path: Path) -> None:
    folder = tmp_path / "home/src/llama.cpp-b4935/build-cuda/bin"
    says = "#!/bin/sh\n[ \"$CUDA_VISIBLE_DEVICES\" ] || echo 'version: 4935 (5bbe6a9f)' >&2\n"
    put(folder / "llama-server", says).chmod(0o755)
    put(folder / "libggml-base.so", PLAIN)
    put(folder / "libggml-cuda.so.0.9.4", OLD_LIBRARY)
    (folder / "libggml-cuda.so").symlink_to("libggml-cuda.so.0.9.4")
    (engine,) = of(here(tmp_path), "llama.cpp", tmp_path)
    assert engine == EngineFound("llama.cpp", str(folder / "llama-server"), "4935 (5bbe6a9f)", *OLD)
    (engine,) = of(here(tmp_path, deep=False), "llama.cpp", tmp_path)
    assert (engine.version, engine.sass) == (None, None)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (OLD_LIBRARY, OLD),  # all in one file
        (elf({b".dynstr": b"\0libc.so.6\0"}), ((), ())),
        (elf({b".dynstr": b"\0libggml.so.0\0"}), (None, None)),  # its libraries lie elsewhere
        (b"#!/bin/sh\n", (None, None)),
    ],
)
def test_llama_server_alone(
    tmp_path: Path, program: bytes, code: tuple[tuple[str, ...] | None, ...]
) -> None:
    put(tmp_path / "bin/llama-server", program).chmod(0o755)
    (engine,) = of(here(tmp_path), "llama.cpp", tmp_path)
    assert (engine.version, engine.sass, engine.ptx) == (None, *code)


def test_a_program_that_others_can_write_is_not_started(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    put(tmp_path / "bin/ollama", f"#!/bin/sh\ntouch {ran}; echo version is 9\n").chmod(0o777)
    (engine,) = of(here(tmp_path), "ollama", tmp_path)
    assert (engine.version, ran.exists()) == (None, False)


def test_ollama_has_a_folder_for_each_cuda(tmp_path: Path) -> None:
    says = "#!/bin/sh\necho 'Warning: could not connect'; echo 'client version is 0.5.7'\n"
    put(tmp_path / "bin/ollama", says).chmod(0o755)
    put(tmp_path / "lib/ollama/cuda_v11/libggml-cuda.so", OLD_LIBRARY)
    new = (CODE / "new_cards.fatbin").read_bytes()
    put(tmp_path / "lib/ollama/cuda_v13/libggml-cuda.so", elf({b".nv_fatbin": new}))
    (engine,) = of(here(tmp_path), "ollama", tmp_path)
    assert engine.version == "0.5.7"
    assert engine.sass == ("sm_50", "sm_60", "sm_70", "sm_90a", "sm_103f", "sm_120")


def test_reading_stops_when_it_has_taken_long_enough(tmp_path: Path) -> None:
    for number in range(3):
        site = tmp_path / f"home/p{number}/.venv/lib/python3.11/site-packages"
        put_package(site, "vllm", "1.0")
        put(site / "vllm/_C.abi3.so", OLD_LIBRARY)
    times = iter(range(0, 999, 6))
    found = read_software(
        DirectoryFiles(Path("/")),
        deep=True,
        environment={"HOME": str(tmp_path / "home")},
        clock=lambda: float(next(times)),
    )
    read = [e.sass is not None for e in of(found, "vllm", tmp_path)]
    assert len(read) == 3
    assert read.count(True) <= 1


def test_a_captured_tree_is_searched_but_starts_and_reads_no_program(tmp_path: Path) -> None:
    put(tmp_path / "opt/llama.cpp/build/bin/llama-server", "#!/bin/sh\necho version: 1\n").chmod(
        0o755
    )
    put_package(tmp_path / "home/someone/venv/lib/python3.9/site-packages", "vllm", "0.6.0")
    found = read_software(DirectoryFiles(tmp_path), deep=True).engines
    assert [(e.name, e.path, e.version, e.sass) for e in found] == [
        ("llama.cpp", "/opt/llama.cpp/build/bin/llama-server", None, None),
        ("vllm", "/home" + "/someone/venv/lib/python3.9/site-packages/vllm", "0.6.0", None),
    ]


NOTED = Software(
    (CudaToolkit("/usr/local/cuda-12.4", "12.4.1"),),
    (
        EngineFound("vllm", "/home" + "/someone/venv/lib/vllm", "0.6.0", ("sm_70",), ()),
        EngineFound("pytorch", "/root" + "/e/torch", None, None, None),
    ),
)


def test_a_note_goes_into_a_capture_and_comes_back_without_home_names() -> None:
    note = to_note(NOTED)
    assert "someone" not in note
    read = read_software(PackedFiles({"software.json": note, "usr/local/cuda-9.0/bin/nvcc": ""}))
    assert [e.path for e in read.engines] == ["~/venv/lib/vllm", "~/e/torch"]
    assert read.toolkits == NOTED.toolkits
    assert [(e.name, e.version, e.sass, e.ptx) for e in read.engines] == [
        (e.name, e.version, e.sass, e.ptx) for e in NOTED.engines
    ]


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{", "[" * 5000, '{"engines": 5}', '{"engines": [{"name": "x"}]}', "\x00", "null"],
)
def test_a_broken_note_is_as_none(note: str) -> None:
    assert from_note(note) is None
    assert read_software(PackedFiles({"software.json": note})) == Software()


def test_a_hostile_note_stays_small_and_printable() -> None:
    row = {
        "name": "vllm",
        "path": "\x1b[2J" + "x" * 9999,
        "version": "1\n2",
        "sass": ["[/]"],
        "ptx": [],
    }
    software = from_note(json.dumps({"engines": [row] * 5000, "toolkits": []}))
    assert software is not None
    assert len(software.engines) <= 64
    assert software.engines[0].sass is None
    assert software.engines[0].version == "1 2"
    assert software.engines[0].path.isprintable()
    assert len(software.engines[0].path) <= 200


def test_names_that_look_like_engines_are_none(tmp_path: Path) -> None:
    site = tmp_path / "usr/lib/python3/dist-packages"
    for name in ("vllm", "torch-.dist-info", "vllm-9.dist-info-old", "torch_scatter-1.dist-info"):
        put(site / name / "x")
    os.mkfifo(tmp_path / "llama")
    found = read_software(DirectoryFiles(tmp_path)).engines
    assert [(e.name, e.version) for e in found] == [("pytorch", None)]
