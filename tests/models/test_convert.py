"""`workhorse convert` on checkpoints as people have them."""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from bf16_checkpoints import (
    bf16,
    bf16_tensor,
    packed,
    read_file,
    reference,
    two_shards,
    unpacked,
    weights,
    write_checkpoint,
)

from workhorse.cli import main
from workhorse.errors import EXIT_GOOD, EXIT_NO, AppError
from workhorse.models.convert.job import Wish, convert
from workhorse.models.convert.report import Conversion


def run(folder: Path, **more: object) -> Conversion:
    return convert(Wish(str(folder), **more), lambda done, total: None)  # type: ignore[arg-type]


def test_a_sharded_checkpoint_becomes_fp16_and_the_rest_comes_along(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "tiny", two_shards())
    assert main(["convert", str(source), "--threads", "3"]) == EXIT_GOOD
    target = tmp_path / "tiny-FP16"
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        before, after = read_file(source / name), read_file(target / name)
        assert before.keys() == after.keys()
        for tensor, (dtype, shape, raw) in before.items():
            if dtype != "BF16":
                assert after[tensor] == (dtype, shape, raw)
                continue
            wanted = packed([reference(code) or 0 for code in unpacked(raw)])
            assert after[tensor] == ("F16", shape, wanted)
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (target / "1_Pooling/config.json").exists()
    config = json.loads((target / "config.json").read_text())
    assert config["torch_dtype"] == config["text_config"]["dtype"] == "float16"
    assert config["text_config"]["rms_norm_eps"] == 1e-06
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["b.ids"] == "model-00002-of-00002.safetensors"
    assert index["metadata"]["total_size"] == 2 * 80_000 + 8 + 8
    assert not (tmp_path / "tiny-FP16.part").exists()


def test_tensors_larger_than_a_block_and_of_odd_length(tmp_path: Path) -> None:
    """Blocks meet without a seam; every type still lies where it may."""
    codes = weights(1_300_001)
    tensors = {
        "odd": bf16_tensor(codes),
        "f": ("F32", [1], struct.pack("<f", 5)),
        "none": bf16_tensor([]),
    }
    source = write_checkpoint(tmp_path / "m", [tensors])
    done = run(source, threads=4)
    after = read_file(tmp_path / "m-FP16/model.safetensors")
    assert unpacked(after["odd"][2]) == [reference(code) for code in codes]
    assert after["f"][2] == struct.pack("<f", 5)
    assert after["none"] == ("F16", [0], b"")
    assert done.shards[0].verified_blocks == 4


def test_the_report_names_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = [bf16(math.nan), bf16(-math.inf), bf16(2.0**-20), bf16(2.0**-30), bf16(-0.0), bf16(7.0)]
    source = write_checkpoint(tmp_path / "m", [{"odd": bf16_tensor(odd)}])
    (source / "model.gguf").write_bytes(b"GGUF")
    assert main(["convert", str(source), "--json"]) == EXIT_GOOD
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((tmp_path / "m-FP16/conversion.json").read_text())
    (found,) = said["shards"][0]["ranges"]
    assert found == {
        "name": "odd", "stored_as": "F16", "values": 6, "largest_magnitude": 7.0, "overflowed": 0,
        "became_zero": 1, "subnormal": 1, "largest_relative_error": 0.0, "nan": 1, "infinite": 1,
    }  # fmt: skip
    codes = [finding["code"] for finding in said["verdict"]["findings"]]
    assert {"fp16.gemma3-norm", "convert.not-finite", "convert.left-out"} <= set(codes)
    assert said["left_out"] == ["model.gguf"]


def test_the_table_speaks_both_languages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards(100))
    assert main(["convert", str(source), "--lang", "zh"]) == EXIT_GOOD
    said = capsys.readouterr().out
    assert "a.weight" in said
    assert "合计" in said
    assert "回读校验通过" in said


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    large = [bf16(1.0), bf16(-131072.0), bf16(98304.0)]
    shards = two_shards(1000)
    shards[1]["large.weight"] = bf16_tensor(large)
    return write_checkpoint(tmp_path / "m", shards)


def test_overflow_fails_and_names_the_tensor(
    overflowing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(overflowing)]) == EXIT_NO
    said = capsys.readouterr().err
    assert "large.weight (2/3, max 131072)" in said
    assert "--on-overflow keep-f32" in said
    assert not overflowing.with_name("m-FP16").exists()


def test_overflow_can_stay_f32_and_what_was_finished_is_used(overflowing: Path) -> None:
    with pytest.raises(AppError):
        run(overflowing)
    done = run(overflowing, on_overflow="keep-f32")
    assert done.resumed_files == 1  # the file that did not overflow
    after = read_file(overflowing.with_name("m-FP16") / "model-00002-of-00002.safetensors")
    assert after["large.weight"] == ("F32", [3], struct.pack("<3f", 1.0, -131072.0, 98304.0))
    assert after["b.weight"][0] == "F16"
    assert "convert.kept-f32" in [finding.code for finding in done.verdict.findings]


def test_overflow_can_be_clamped(overflowing: Path) -> None:
    done = run(overflowing, on_overflow="clamp")
    after = read_file(overflowing.with_name("m-FP16") / "model-00002-of-00002.safetensors")
    assert unpacked(after["large.weight"][2]) == [0x3C00, 0xFBFF, 0x7BFF]
    assert "convert.clamped" in [finding.code for finding in done.verdict.findings]


def test_a_hubs_cache_of_links_is_read_through_them(tmp_path: Path) -> None:
    blobs = write_checkpoint(tmp_path / "blobs", [{"a": bf16_tensor(weights(100))}])
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (snapshot / name).symlink_to(blobs / name)
    done = run(snapshot)
    assert done.carried == ("config.json", "tokenizer.json")
    assert (tmp_path / "snapshot-FP16/tokenizer.json").read_bytes()


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "m", two_shards(2_000_000))
    steps: list[tuple[int, int]] = []
    convert(Wish(str(source), threads=3), lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1] == 2 * (2 * 4_000_000 + 16)


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """The peak of a process that converts 300 MB stays below 100 MB."""
    folder = tmp_path / "m"
    write_checkpoint(folder, [{"a": bf16_tensor([])}])
    names = [f"t{i}" for i in range(10)]
    n_bytes = 30_000_000
    head = {
        name: {
            "dtype": "BF16",
            "shape": [n_bytes // 2],
            "data_offsets": [i * n_bytes, (i + 1) * n_bytes],
        }
        for i, name in enumerate(names)
    }
    raw = json.dumps(head).encode()
    piece = packed(weights(50_000)) * (n_bytes // 100_000)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for _ in names:
            file.write(piece)
    script = (
        "import sys; from workhorse.cli import main; code = main(sys.argv[1:]);"
        # Not getrusage: its peak is the parent's where that was larger.
        "peak = [line for line in open('/proc/self/status') if 'VmHWM' in line];"
        "print(peak[0].split()[1], file=sys.stderr);"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "convert", str(folder), "--json", "--threads", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) * 1024 < 100_000_000
