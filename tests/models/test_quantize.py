"""`workhorse quantize`: the bytes that llama.cpp's own tools make, and what it says of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from quantised_model import LAYERS, WIDTH, tensor_digest, write_importance, write_model

from workhorse.cli import main
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.models.gguf import read_gguf
from workhorse.models.quantize.choice import mix_named, offered, override_of, refuse_few_bits
from workhorse.models.quantize.imatrix_file import (
    Imatrix,
    Importance,
    read_imatrix,
    write_imatrix,
)
from workhorse.models.quantize.job import Ground, Quantised, Wish, beside, quantize
from workhorse.models.quantize.likeness import Sums
from workhorse.models.quantize.watch import add_by_expert, add_dense
from workhorse.text import Text

REFERENCE = json.loads(Path(__file__).with_name("quantised_reference.json").read_text())


class Silent:
    def stage(self, words: Text) -> None:
        pass

    def progress(self, done: int, total: int | None) -> None:
        assert total is None or 0 <= done <= total


def run(model: Path, data: Path, **more: object) -> Quantised:
    wish = Wish(model, proof=False, **more)  # type: ignore[arg-type]
    return quantize(wish, Ground(data, {"GOMP_SPINCOUNT": "1000"}), Silent())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "nine-F16.gguf")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_importance(tmp_path_factory.mktemp("matrix") / "imatrix.gguf")


def test_the_model_is_the_one_that_the_reference_was_made_of(model: Path) -> None:
    assert tensor_digest(model) == REFERENCE["model"]


@pytest.mark.parametrize("kind", REFERENCE["plain"])
def test_the_tensors_are_those_of_llama_quantize(
    kind: str, model: Path, matrix: Path, tmp_path: Path
) -> None:
    """Byte for byte, types and order too, with an importance matrix and without."""
    run(model, tmp_path, type=kind, output=tmp_path / "plain.gguf", weighted=False)
    assert tensor_digest(tmp_path / "plain.gguf") == REFERENCE["plain"][kind]
    done = run(model, tmp_path, type=kind, output=tmp_path / "weighted.gguf", imatrix=matrix)
    assert tensor_digest(tmp_path / "weighted.gguf") == REFERENCE["weighted"][kind]
    assert done.imatrix_chunks == 4
    assert done.without_importance == ("output.weight", "token_embd.weight")


def test_types_can_be_set_by_name(model: Path, tmp_path: Path) -> None:
    overrides = (override_of(r"blk\.[01]\.ffn_down=Q6_K"), override_of("attn_v=q8_0"))
    done = run(model, tmp_path, type="Q4_0", output=tmp_path / "o.gguf", weighted=False,
               overrides=overrides)  # fmt: skip
    types = {tensor.name: tensor.type for tensor in read_gguf(Path(done.target)).tensors}
    assert types["blk.1.ffn_down.weight"] == "q6_k"
    assert types["blk.2.ffn_down.weight"] == "q4_0"
    assert {types[f"blk.{layer}.attn_v.weight"] for layer in range(LAYERS)} == {"q8_0"}
    assert types["blk.0.attn_norm.weight"] == "f32"


def test_the_name_of_the_new_file() -> None:
    assert beside(Path("/m/Qwen3-8B-BF16.gguf"), "Q4_K_M") == Path("/m/Qwen3-8B-Q4_K_M.gguf")
    assert beside(Path("/m/a.f16-00001-of-00002.gguf"), "Q8_0") == Path("/m/a-Q8_0.gguf")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--type", "Q9"], EXIT_USAGE, "There is no quantisation"),
        (["--type", "F16"], EXIT_USAGE, "There is no quantisation"),
        (["--tensor-type", "ffn_down"], EXIT_USAGE, "names no tensors and type"),
        (["--tensor-type", "(=q8_0"], EXIT_USAGE, "names no tensors and type"),
        (["--tensor-type", "nothing=q8_0", "--no-imatrix"], EXIT_USAGE, "No tensor"),
        (["--tensor-type", "nothing=q8_0", "--no-imatrix"], EXIT_USAGE, "ffn_down.weight"),
        (["--tensor-type", "ffn_down=q8_k"], EXIT_USAGE, "names no tensors and type"),
        (["--tensor-type", "down=iq2_xs", "--no-imatrix"], EXIT_USAGE, "without an importance"),
        (["--imatrix", "a", "--no-imatrix"], EXIT_USAGE, "contradict"),
        (["--calibration", "nowhere.txt"], EXIT_USAGE, "cannot be used"),
        (["--output", "/nowhere/at/all.gguf"], EXIT_USAGE, "There is no folder"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(
    words: list[str],
    code: int,
    said: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = sorted(model.parent.iterdir())
    assert main(["quantize", str(model), "--lang", "en", *words]) == code
    assert said in capsys.readouterr().err
    assert sorted(model.parent.iterdir()) == before


def test_a_type_that_has_to_be_weighted_and_is_not_is_told(
    model: Path, matrix: Path, tmp_path: Path
) -> None:
    """The library ends the process there."""
    whole = read_imatrix(matrix)
    whole.of.pop("blk.0.ffn_down.weight")
    write_imatrix(tmp_path / "less.gguf", whole)
    before = sorted(tmp_path.iterdir())
    more = {"imatrix": tmp_path / "less.gguf", "overrides": (override_of("0.ffn_down=iq2_xs"),)}
    with pytest.raises(AppError, match=r"nothing of blk\.0\.ffn_down"):
        run(model, tmp_path, output=tmp_path / "made.gguf", **more)
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_is_sent_to_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tmp_path), "--lang", "en"]) == EXIT_USAGE
    assert f"workhorse convert {tmp_path} --to gguf" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "m.GGUF"), "--lang", "en"]) == EXIT_USAGE
    assert "workhorse quantize" in capsys.readouterr().err


def test_a_quantised_file_is_not_quantised_again(model: Path, tmp_path: Path) -> None:
    made = run(model, tmp_path, type="Q8_0", output=tmp_path / "q8.gguf", weighted=False)
    with pytest.raises(AppError, match="quantised already"):
        run(Path(made.target), tmp_path, weighted=False, output=tmp_path / "again.gguf")
    with pytest.raises(AppError, match="there already"):
        run(model, tmp_path, type="Q8_0", output=Path(made.target), weighted=False)


def test_fewer_than_four_bits_on_old_cards_only_when_asked() -> None:
    volta, ampere = ((7, 0),), ((8, 6),)
    for name in offered():
        mix = mix_named(name)
        refuse_few_bits(mix, None, ampere)
        refuse_few_bits(mix, None, ())
        if name in ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ3_M", "IQ3_S"):
            with pytest.raises(AppError) as error:
                refuse_few_bits(mix, None, (*ampere, *volta))
            assert error.value.exit_code == EXIT_NO
            refuse_few_bits(mix, 2.0, volta)
        else:
            refuse_few_bits(mix, None, volta)


# --- the importance matrix


def test_squares_go_to_the_experts_that_the_router_chose() -> None:
    dice = np.random.default_rng(1)
    values = dice.normal(size=(5, 2, 8)).astype(np.float32)  # tokens, chosen, columns
    chosen = np.array([[0, 1], [1, 2], [3, 0], [0, 1], [2, 3]], np.int32)
    sums, counts = np.zeros((4, 8)), np.zeros(4)
    add_by_expert(sums, counts, values, chosen)
    for expert in range(4):
        rows = [values[t, k] for t in range(5) for k in range(2) if chosen[t, k] == expert]
        assert counts[expert] == len(rows)
        assert np.allclose(sums[expert], sum(row.astype(float) ** 2 for row in rows))


def test_squares_of_dense_layers_are_added_up() -> None:
    values = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    sums, counts = np.zeros((1, 4)), np.zeros(1)
    add_dense(sums, counts, values, 1, 1)
    assert counts[0] == 6
    assert sums[0].tolist() == [
        sum((4 * row + column) ** 2 for row in range(6)) for column in range(4)
    ]


def test_a_matrix_reads_back_and_experts_without_text_weigh_one(tmp_path: Path) -> None:
    sums = np.array([[2, 4], [0, 0]], np.float32)
    made = Imatrix(
        3, 512, "text", {"blk.0.x.weight": Importance(sums, np.array([2, 0], np.float32))}
    )
    write_imatrix(tmp_path / "m.gguf", made)
    found = read_imatrix(tmp_path / "m.gguf")
    assert (found.chunks, found.chunk_tokens) == (3, 512)
    assert found.of["blk.0.x.weight"].weights().tolist() == [[1, 2], [1, 1]]
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("damage", ["other", "cut", "negative", "nan", "counts", "empty"])
def test_damaged_and_foreign_matrices_are_refused(damage: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    width = WIDTH * 2 if damage == "other" else WIDTH
    sums = np.ones((1, width), np.float32)
    if damage == "negative":
        sums[0, 3] = -1
    if damage == "nan":
        sums[0, 3] = math.nan
    counts = np.ones(2 if damage == "counts" else 1, np.float32)
    write_imatrix(path, Imatrix(1, 512, "t", {"blk.0.attn_q.weight": Importance(sums, counts)}))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-600])
    if damage == "empty":
        path.write_bytes(b"")
    with pytest.raises(AppError):
        run(model, tmp_path, imatrix=path, output=tmp_path / "o.gguf")
    assert [found.name for found in tmp_path.iterdir()] == ["m.gguf"]


# --- likeness


def test_likeness_is_what_a_plain_reckoning_gives() -> None:
    dice = np.random.default_rng(2)
    ours, theirs = dice.normal(size=(2, 70, 11)).astype(np.float32) * 3
    came = dice.integers(0, 11, 70).astype(np.int32)
    sums = Sums()
    sums.add(ours, theirs, came)
    found = sums.result()

    def softmax(row: list[float]) -> list[float]:
        top = [math.exp(value) for value in row]
        return [value / sum(top) for value in top]

    p, q = [softmax(r) for r in ours.tolist()], [softmax(r) for r in theirs.tolist()]
    divergence = [
        sum(a * math.log(a / b) for a, b in zip(x, y, strict=True))
        for x, y in zip(p, q, strict=True)
    ]
    loss = [-math.log(row[token]) for row, token in zip(q, came.tolist(), strict=True)]
    same = sum(x.index(max(x)) == y.index(max(y)) for x, y in zip(p, q, strict=True))
    assert found.tokens == 70
    assert found.kl_mean == pytest.approx(sum(divergence) / 70, rel=1e-4)
    assert found.kl_max == pytest.approx(max(divergence), rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(sum(loss) / 70), rel=1e-5)
    assert found.same_top == same / 70


def test_a_model_is_like_itself() -> None:
    logits = np.random.default_rng(3).normal(size=(5, 300)).astype(np.float32) * 40
    sums = Sums()
    sums.add(logits, logits, np.zeros(5, np.int32))
    found = sums.result()
    assert (found.kl_mean, found.same_top) == (0, 1)
    assert found.perplexity == found.parent_perplexity


def test_json_of_the_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    words = ["--type", "q6_k", "--no-imatrix", "--no-proof", "--output", str(tmp_path / "o.gguf")]
    assert main(["quantize", str(model), "--json", *words]) == EXIT_GOOD
    told = json.loads(capsys.readouterr().out)
    assert told["quantisation"] == "Q6_K"
    assert told["n_bytes"] == (tmp_path / "o.gguf").stat().st_size
    assert told["quality"] is None
