"""What a Model says about files in order, real and made up."""

from pathlib import Path

import gguf
import pytest
from gguf_builder import ARR, BOOL, F32, I32, STR, U32, Gguf, array, llama

from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.models.gguf import read_gguf
from workhorse.models.header import read_header
from workhorse.records import Attention, Model


@pytest.mark.real
def test_every_tensor_of_the_real_model_is_as_the_gguf_package_reads_it(real_model: Path) -> None:
    model = read_gguf(real_model)
    oracle = gguf.GGUFReader(real_model)
    assert len(model.tensors) == len(oracle.tensors) == 272
    for ours, theirs in zip(model.tensors, oracle.tensors, strict=True):
        assert ours.name == theirs.name
        assert ours.type == theirs.tensor_type.name.lower()
        assert list(ours.shape) == theirs.shape.tolist()
        assert ours.n_bytes == theirs.n_bytes
        assert ours.offset_bytes == theirs.data_offset


@pytest.mark.real
def test_the_real_model_is_described(real_model: Path) -> None:
    model = read_gguf(real_model)
    assert model.architecture == "llama"
    assert model.file_bytes == real_model.stat().st_size == 98_362_432
    assert model.parameters == 134_515_008
    assert model.attention == (Attention(3, 64, 64),) * 30
    assert (model.layers, model.embedding_size, model.heads) == (30, 576, 9)
    assert (model.vocabulary, model.context_trained_tokens) == (49_152, 8192)
    assert (model.experts, model.experts_used, model.pooling) == (0, 0, False)
    assert model.quantisation == "q4_1"
    assert model.chat_template is not None and "<|im_start|>" in model.chat_template
    assert model.licence == "apache-2.0"


def test_a_small_file(tmp_path: Path) -> None:
    path = llama().key("general.license", STR, "mit").write(tmp_path / "tiny.gguf")
    model = read_gguf(path)
    assert model.name == "Tiny"
    assert model.path == str(path)
    assert [tensor.type for tensor in model.tensors] == ["q8_0", "q4_0", "f32", "q4_0", "f32"]
    assert model.weight_bytes == 680 + 2 * (2304 + 256)
    assert model.quantisation == "q4_0"
    assert model.attention == (Attention(2, 16, 16),) * 2
    assert model.vocabulary == 10
    assert model.licence == "mit"
    assert from_json(Model, to_json(model), what="the model") == model


def test_the_file_name_is_the_name_of_a_nameless_model(tmp_path: Path) -> None:
    path = llama().without("general.name").write(tmp_path / "Nameless-7B.Q4_0.gguf")
    assert read_gguf(path).name == "Nameless-7B.Q4_0"


def test_other_alignments_and_version_two(tmp_path: Path) -> None:
    file = llama().key("general.alignment", U32, 256)
    file.alignment, file.version = 256, 2
    model = read_gguf(file.write(tmp_path / "a.gguf"))
    assert all(tensor.offset_bytes % 256 == 0 for tensor in model.tensors)


def test_big_vocabularies_are_counted_and_not_kept(tmp_path: Path) -> None:
    tokens: list[object] = [f"token{i}" * (i % 5) for i in range(151_936)]
    file = llama().without("tokenizer.ggml.tokens").list("tokenizer.ggml.tokens", STR, tokens)
    file.list("tokenizer.ggml.scores", F32, [0.0] * len(tokens))
    file.list("tokenizer.ggml.token_type", I32, [1] * len(tokens))
    file.key("tokenizer.chat_template", STR, "{{ messages }}")
    model = read_gguf(file.write(tmp_path / "big.gguf"))
    assert model.vocabulary == 151_936
    assert model.chat_template == "{{ messages }}"


def test_any_window_size_reads_the_same_header() -> None:
    raw = llama().list("scores", F32, [1.0] * 1000).build()

    def read_at(offset: int, size: int) -> bytes:
        return raw[offset : offset + size]

    whole = read_header(read_at, len(raw), name="raw")
    for chunk_bytes in (1, 7, 64, 1000):
        assert read_header(read_at, len(raw), name="raw", chunk_bytes=chunk_bytes) == whole


def test_weights_are_never_read(tmp_path: Path) -> None:
    file = llama().tensor("big.weight", (1024, 1024, 64))
    raw, reads = file.header(), []
    size_bytes = len(raw) + file.data_bytes() + 32

    def read_at(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return raw[offset : offset + size].ljust(size, b"\0")

    read_header(read_at, size_bytes, name="sparse", chunk_bytes=256)
    assert max(offset + size for offset, size in reads) < len(raw) + 512


def test_vocabulary_without_a_list(tmp_path: Path) -> None:
    file = llama().without("tokenizer.ggml.tokens")
    assert read_gguf(file.write(tmp_path / "a.gguf")).vocabulary == 10  # of token_embd
    file.key("llama.vocab_size", U32, 12)
    assert read_gguf(file.write(tmp_path / "b.gguf")).vocabulary == 12


def test_experts(tmp_path: Path) -> None:
    file = llama().key("llama.expert_count", U32, 8).key("llama.expert_used_count", U32, 2)
    model = read_gguf(file.write(tmp_path / "moe.gguf"))
    assert (model.experts, model.experts_used) == (8, 2)
    file = llama().key("llama.expert_count", U32, 8).list("llama.expert_used_count", U32, [2, 4])
    assert read_gguf(file.write(tmp_path / "moe2.gguf")).experts_used == 4


def test_embedding_models(tmp_path: Path) -> None:
    pooled = llama(architecture="qwen3").key("qwen3.pooling_type", U32, 3)
    pools = read_gguf(pooled.write(tmp_path / "a.gguf"))
    assert (pools.pooling, pools.ranks) == (True, False)
    ranking = llama(architecture="qwen3").key("qwen3.pooling_type", U32, 4)
    ranks = read_gguf(ranking.write(tmp_path / "d.gguf"))
    assert (ranks.pooling, ranks.ranks) == (True, True)
    unpooled = llama().key("llama.pooling_type", U32, 0)
    assert not read_gguf(unpooled.write(tmp_path / "b.gguf")).pooling
    bert = read_gguf(llama(architecture="bert", kv_heads=None).write(tmp_path / "c.gguf"))
    assert bert.pooling
    assert bert.attention == (None, None)


def test_texts_from_the_file_cannot_move_the_cursor(tmp_path: Path) -> None:
    file = llama().without("general.name").key("general.name", STR, "A\x1b[2J\nB")
    assert read_gguf(file.write(tmp_path / "a.gguf")).name == "A�[2J�B"


def test_a_text_that_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    file = llama().without("general.name").key("general.name", STR, b"caf\xe9")
    assert read_gguf(file.write(tmp_path / "a.gguf")).name == "caf�"


@pytest.mark.parametrize("kind", ["adapter", "imatrix", "mmproj"])
def test_companions_of_a_model_are_no_model(tmp_path: Path, kind: str) -> None:
    path = llama().key("general.type", STR, kind).write(tmp_path / "a.gguf")
    with pytest.raises(AppError, match="cannot be used"):
        read_gguf(path)


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    file = llama()
    file.tensors = []
    with pytest.raises(AppError, match="no weights"):
        read_gguf(file.write(tmp_path / "vocab.gguf"))


# ---------------------------------------------------------------- KV per layer


def attention_of(file: Gguf, tmp_path: Path) -> tuple[Attention | None, ...]:
    return read_gguf(file.write(tmp_path / "model.gguf")).attention


def windows(file: Gguf, tmp_path: Path) -> list[int | None]:
    kept = attention_of(file, tmp_path)
    return [layer.window_tokens if layer else None for layer in kept]


def test_every_head_has_kv_when_no_other_number_is_given(tmp_path: Path) -> None:
    assert attention_of(llama(kv_heads=None), tmp_path) == (Attention(4, 16, 16),) * 2


def test_key_and_value_sizes_of_their_own(tmp_path: Path) -> None:
    file = llama().key("llama.attention.key_length", U32, 24)
    file.key("llama.attention.value_length", U32, 12)
    assert attention_of(file, tmp_path) == (Attention(2, 24, 12),) * 2


def test_kv_heads_per_layer_and_layers_without(tmp_path: Path) -> None:
    file = llama(layers=3, kv_heads=None).list("llama.attention.head_count_kv", I32, [2, 0, 4])
    kept = attention_of(file, tmp_path)
    assert kept == (Attention(2, 16, 16), None, Attention(4, 16, 16))


@pytest.mark.parametrize(
    ("name", "period", "dense_first"),
    [("gemma3", 6, False), ("gpt-oss", 2, False), ("laguna", 4, True)],
)
def test_windows_by_architecture(tmp_path: Path, name: str, period: int, dense_first: bool) -> None:
    file = llama(layers=12, architecture=name).key(f"{name}.attention.sliding_window", U32, 512)
    wide = 0 if dense_first else period - 1
    assert windows(file, tmp_path) == [
        None if layer % period == wide else 512 for layer in range(12)
    ]


def test_the_pattern_of_the_file_comes_first(tmp_path: Path) -> None:
    file = llama(layers=4, architecture="gemma3").key("gemma3.attention.sliding_window", U32, 512)
    listed = [True, False, False, True]
    file.list("gemma3.attention.sliding_window_pattern", BOOL, list(listed))
    assert windows(file, tmp_path) == [512, None, None, 512]
    file.without("gemma3.attention.sliding_window_pattern")
    file.key("gemma3.attention.sliding_window_pattern", U32, 2)
    assert windows(file, tmp_path) == [512, None, 512, None]


def test_a_window_that_nobody_describes_costs_the_whole_context(tmp_path: Path) -> None:
    file = llama(layers=4).key("llama.attention.sliding_window", U32, 4096)
    assert windows(file, tmp_path) == [None] * 4


def test_windows_that_the_engine_ignores_or_sets_itself(tmp_path: Path) -> None:
    phi = llama(layers=4, architecture="phi3").key("phi3.attention.sliding_window", U32, 2047)
    assert windows(phi, tmp_path) == [None] * 4
    llama4 = llama(layers=4, architecture="llama4")
    assert windows(llama4, tmp_path) == [8192, 8192, 8192, None]
    llama4.key("llama4.attention.sliding_window", U32, 0)
    assert windows(llama4, tmp_path) == [None] * 4
    assert windows(llama(layers=4, architecture="gemma2"), tmp_path) == [4096, None, 4096, None]
    assert windows(llama(layers=4, architecture="exaone4"), tmp_path) == [None] * 4
    lfm = llama(layers=2, architecture="lfm2").key("lfm2.attention.sliding_window", U32, 128)
    assert windows(lfm, tmp_path) == [128, 128]


def test_head_sizes_of_window_layers(tmp_path: Path) -> None:
    file = llama(layers=2, architecture="gpt-oss").key("gpt-oss.attention.sliding_window", U32, 128)
    file.key("gpt-oss.attention.key_length_swa", U32, 8)
    file.key("gpt-oss.attention.value_length_swa", U32, 4)
    assert attention_of(file, tmp_path) == (Attention(2, 8, 4, 128), Attention(2, 16, 16))


def test_hybrid_models_keep_kv_in_some_layers(tmp_path: Path) -> None:
    kept = attention_of(llama(layers=8, architecture="qwen3next"), tmp_path)
    assert [layer is not None for layer in kept] == [False, False, False, True] * 2
    file = llama(layers=4, architecture="qwen35").key("qwen35.full_attention_interval", U32, 2)
    assert [layer is not None for layer in attention_of(file, tmp_path)] == [False, True] * 2
    file.list("qwen35.attention.recurrent_layers", BOOL, [False, True, True, True])
    kept = attention_of(file, tmp_path)
    assert [layer is not None for layer in kept] == [True, False, False, False]


def test_recurrent_models_keep_none(tmp_path: Path) -> None:
    file = llama(architecture="mamba2", heads=0, kv_heads=None)
    model = read_gguf(file.write(tmp_path / "m.gguf"))
    assert model.attention == (None, None)
    assert model.heads == 0


def test_latent_attention_keeps_keys_only(tmp_path: Path) -> None:
    file = llama(architecture="deepseek2", kv_heads=1)
    file.key("deepseek2.attention.key_length", U32, 576)
    file.key("deepseek2.attention.value_length", U32, 512)
    file.key("deepseek2.attention.key_length_mla", U32, 192)
    file.key("deepseek2.attention.value_length_mla", U32, 128)
    assert attention_of(file, tmp_path) == (Attention(1, 576, 0),) * 2


def test_layers_that_predict_ahead_or_share_kv_keep_none(tmp_path: Path) -> None:
    file = llama(layers=3, architecture="glm4moe").key("glm4moe.nextn_predict_layers", U32, 1)
    assert [layer is not None for layer in attention_of(file, tmp_path)] == [True, True, False]
    file = llama(layers=4, architecture="gemma4").key("gemma4.attention.shared_kv_layers", U32, 3)
    kept = attention_of(file, tmp_path)
    assert [layer is not None for layer in kept] == [True, False, False, False]
    kept = attention_of(llama(layers=22, architecture="gemma3n"), tmp_path)
    assert [layer is not None for layer in kept] == [True] * 20 + [False] * 2


def test_a_list_of_another_length_than_the_layers(tmp_path: Path) -> None:
    file = llama(kv_heads=None).list("llama.attention.head_count_kv", U32, [2, 2, 2])
    with pytest.raises(AppError, match="has 3 entries for 2 layers"):
        attention_of(file, tmp_path)


def test_kv_without_a_head_size(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="size of a head"):
        attention_of(llama(heads=0, kv_heads=2), tmp_path)


# ---------------------------------------------------------------- parts


def parts(tmp_path: Path, count: int = 3) -> list[Path]:
    """A model in `count` files, as `llama-gguf-split` writes them."""
    paths = []
    for number in range(count):
        if number:
            file = Gguf().tensor(f"blk.{number}.ffn_down.weight", (64, 64))
        else:
            file = llama().key("split.tensors.count", I32, 5 + count - 1)
        file.key("split.no", U32, number).key("split.count", U32, count)
        path = tmp_path / f"big-{number + 1:05d}-of-{count:05d}.gguf"
        paths.append(file.write(path))
    return paths


def test_a_split_model_is_one_model_whatever_part_is_named(tmp_path: Path) -> None:
    paths = parts(tmp_path)
    for path in paths:
        model = read_gguf(path)
        assert model.path == str(paths[0])
        assert model.file_bytes == sum(part.stat().st_size for part in paths)
        assert len(model.tensors) == 7
        assert model.tensors[-1].name == "blk.2.ffn_down.weight"


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(AppError, match=r"big-00002-of-00003\.gguf") as caught:
        read_gguf(paths[0])
    assert str(tmp_path) in caught.value.next_step.en


def test_a_part_with_another_name(tmp_path: Path) -> None:
    path = parts(tmp_path)[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(AppError, match="part 2 of 3"):
        read_gguf(path)


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    paths = parts(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(AppError, match="not part 3"):
        read_gguf(paths[0])


def test_a_part_that_lacks_tensors(tmp_path: Path) -> None:
    paths = parts(tmp_path)
    Gguf().key("split.no", U32, 2).key("split.count", U32, 3).write(paths[2])
    with pytest.raises(AppError, match="6 different tensors, not 7"):
        read_gguf(paths[0])


def test_parts_with_too_many_tensors_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = parts(tmp_path)
    monkeypatch.setattr("workhorse.models.gguf.TENSORS_MAX", 6)
    with pytest.raises(AppError, match="too many tensors"):
        read_gguf(paths[0])


def test_an_absurd_number_of_parts(tmp_path: Path) -> None:
    path = llama().key("split.count", U32, 2**31).write(tmp_path / "a.gguf")
    with pytest.raises(AppError, match="2147483648 parts"):
        read_gguf(path)


def test_nested_lists_are_refused(tmp_path: Path) -> None:
    file = llama()
    file.keys.append(("nested", array(ARR, [])))
    with pytest.raises(AppError, match="list of lists"):
        read_gguf(file.write(tmp_path / "a.gguf"))
