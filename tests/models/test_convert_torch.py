"""PyTorch files: read where PyTorch is, never run."""

import json
import pickle
from pathlib import Path

import pytest
from bf16_checkpoints import CONFIG, read_file, reference, unpacked, weights

from workhorse.errors import AppError
from workhorse.models.convert.job import Wish, convert
from workhorse.models.convert.report import Conversion


def run(folder: Path) -> Conversion:
    return convert(Wish(str(folder)), lambda done, total: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "m"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    return made


class Evil:
    """Unpickled by a reader that trusts it, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_pickle_with_code_is_not_run(folder: Path, tmp_path: Path) -> None:
    """With PyTorch or without."""
    trap = tmp_path / "sprung"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil(trap)}, protocol=2))
    with pytest.raises(AppError):
        run(folder)
    assert not trap.exists()
    assert not (tmp_path / "m-FP16.part").exists()


def test_modules_beside_the_model_are_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "sprung"
    for name in ("torch", "numpy", "json", "workhorse"):
        (folder / f"{name}.py").write_text(f"open({str(trap)!r}, 'w')")
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    monkeypatch.chdir(folder)
    with pytest.raises(AppError):
        run(folder)
    assert not trap.exists()


def test_without_pytorch_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AppError, match=r"pip install 'torch>=2\.6'"):
        run(folder)


def test_a_sharded_pytorch_checkpoint_becomes_safetensors(folder: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    codes = weights(700_000)
    a = torch.tensor(codes, dtype=torch.uint16).view(torch.bfloat16).reshape(700, 1000)
    ids = torch.arange(5)
    first, second = (f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2))
    torch.save({"a": a, "ids": ids}, folder / first)
    torch.save({"tied": a[100:200], "f": torch.ones(3)}, folder / second)
    where = {"a": first, "ids": first, "tied": second, "f": second}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    run(folder)
    target = tmp_path / "m-FP16"
    one = read_file(target / "model-00001-of-00002.safetensors")
    two = read_file(target / "model-00002-of-00002.safetensors")
    wanted = [reference(code) for code in codes]
    assert one["a"][:2] == ("F16", [700, 1000])
    assert unpacked(one["a"][2]) == wanted
    assert unpacked(two["tied"][2]) == wanted[100_000:200_000]
    assert one["ids"] == ("I64", [5], ids.numpy().tobytes())
    assert two["f"][0] == "F32"
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["tied"] == "model-00002-of-00002.safetensors"
    assert sorted(path.name for path in target.iterdir()) == [
        "config.json", "conversion.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["code", "old format", "nested", "view", "cut off", "a list"])
def test_a_pytorch_file_that_is_no_table_of_tensors_is_refused(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    torch = pytest.importorskip("torch")
    path, trap = folder / "pytorch_model.bin", tmp_path / "sprung"
    t = torch.ones(64, 64, dtype=torch.bfloat16)
    content = {
        "code": {"t": t, "evil": Evil(trap)}, "nested": {"model": {"t": t}}, "view": {"t": t.T[1:]},
        "a list": [t],
    }.get(kind, {"t": t})  # fmt: skip
    torch.save(content, path, _use_new_zipfile_serialization=kind != "old format")
    if kind == "cut off":
        path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(AppError, match="PyTorch does not load"):
        run(folder)
    assert not trap.exists()
    assert not (tmp_path / "m-FP16.part").exists()
