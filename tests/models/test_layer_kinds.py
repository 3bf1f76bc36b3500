"""What layers keep when no table knows the architecture, and other rare forms."""

from pathlib import Path

import pytest
from gguf_builder import BOOL, F16_TENSOR, STR, U32, Gguf, llama

from workhorse.errors import AppError
from workhorse.models.gguf import read_gguf
from workhorse.models.header import read_header
from workhorse.models.projector import describe_projector
from workhorse.records import Attention, Model, Projector, RecurrentState, SideCache


def read(file: Gguf, folder: Path) -> Model:
    return read_gguf(file.write(folder / "model.gguf"))


def test_an_unknown_architecture_is_planned_from_its_tensors(tmp_path: Path) -> None:
    file = llama(layers=4, architecture="newarch")
    file.tensor("blk.0.attn_k.weight", (64, 32), F16_TENSOR)
    file.tensor("blk.0.attn_v.weight", (64, 48), F16_TENSOR)
    file.tensor("blk.1.attn_kv_a_mqa.weight", (64, 576), F16_TENSOR)
    file.tensor("blk.2.attn_qkv.weight", (64, 64 + 2 * 32), F16_TENSOR)
    model = read(file, tmp_path)
    assert not model.known
    assert model.attention == (
        Attention(1, 32, 48),
        Attention(1, 576, 0),
        Attention(1, 32, 32),
        None,
    )


def test_an_unknown_architecture_without_such_tensors_goes_by_its_keys(tmp_path: Path) -> None:
    model = read(llama(layers=2, architecture="newarch"), tmp_path)
    assert not model.known
    assert model.attention == (Attention(2, 16, 16),) * 2


def test_a_model_that_runs_its_layers_twice_keeps_twice_the_kv(tmp_path: Path) -> None:
    file = llama(layers=2, architecture="nanbeige").key("nanbeige.num_loops", U32, 2)
    assert read(file, tmp_path).attention == (Attention(4, 16, 16),) * 2


def test_layers_that_draft_are_told_apart(tmp_path: Path) -> None:
    file = llama(layers=3, architecture="glm4moe").key("glm4moe.nextn_predict_layers", U32, 1)
    model = read(file, tmp_path)
    assert model.attention == (Attention(2, 16, 16), Attention(2, 16, 16), None)
    assert model.draft_layers == 1
    assert model.draft_attention == (Attention(2, 16, 16),)


def test_recurrent_layers_keep_a_state(tmp_path: Path) -> None:
    file = llama(layers=4, architecture="qwen35")
    for name, value in (("conv_kernel", 4), ("inner_size", 512), ("state_size", 16),
                        ("group_count", 2)):  # fmt: skip
        file.key(f"qwen35.ssm.{name}", U32, value)
    model = read(file, tmp_path)
    state = RecurrentState(3 * (512 + 2 * 2 * 16) * 4, 512 * 16 * 4)
    assert model.recurrent == (state, state, state, None)
    assert model.attention == (None, None, None, Attention(2, 16, 16))


def test_a_model_of_attention_alone_has_no_states(tmp_path: Path) -> None:
    assert read(llama(), tmp_path).recurrent == ()


def test_sparse_attention_keeps_an_index_where_the_file_lists_one(tmp_path: Path) -> None:
    file = llama(layers=2, architecture="glm-dsa")
    file.key("glm-dsa.attention.indexer.key_length", U32, 32)
    every = read(file, tmp_path).attention
    assert [a.side for a in every if a] == [(SideCache(32),)] * 2
    file.list("glm-dsa.attention.indexer.types", BOOL, [True, False])
    some = read(file, tmp_path).attention
    assert [a.side for a in some if a] == [(SideCache(32),), ()]


@pytest.mark.parametrize("listed", [[True], [True] * 5])
def test_a_list_of_indexes_may_go_on_but_not_end_early(
    listed: list[object], tmp_path: Path
) -> None:
    file = llama(layers=2, architecture="glm-dsa")
    file.key("glm-dsa.attention.indexer.key_length", U32, 32)
    file.list("glm-dsa.attention.indexer.types", BOOL, listed)
    if len(listed) > 2:
        assert read(file, tmp_path).attention
        return
    with pytest.raises(AppError, match="indexer"):
        read(file, tmp_path)


@pytest.mark.parametrize(("kind", "pools"), [(0, False), (1, True), (3, True), (2**32 - 1, False)])
def test_a_pooling_that_is_not_specified_is_none(kind: int, pools: bool, tmp_path: Path) -> None:
    assert read(llama().key("llama.pooling_type", U32, kind), tmp_path).pooling is pools


def projector_of(file: Gguf) -> Projector:
    raw = file.build()
    header = read_header(lambda at, count: raw[at : at + count], len(raw), name="mmproj.gguf")
    return describe_projector([header], Path("mmproj.gguf"))


def test_a_projector_is_read() -> None:
    file = Gguf().key("general.architecture", STR, "clip").key("general.name", STR, "Eyes")
    for name, value in (("image_size", 896), ("patch_size", 14), ("embedding_length", 1152),
                        ("feed_forward_length", 4304), ("attention.head_count", 16)):  # fmt: skip
        file.key(f"clip.vision.{name}", U32, value)
    file.tensor("v.patch_embd.weight", (14, 14, 3, 32), F16_TENSOR)
    assert projector_of(file) == Projector(
        "mmproj.gguf", "Eyes", 14 * 14 * 3 * 32 * 2, 896, 14, 1152, 4304, 16
    )


def test_a_projector_for_sound_has_no_image() -> None:
    file = Gguf().key("general.architecture", STR, "clip")
    file.key("clip.audio.embedding_length", U32, 1280)
    found = projector_of(file.tensor("a.conv1d.1.weight", (3, 80, 8)))
    assert (found.name, found.image_size, found.embedding_size) == ("mmproj", None, 1280)


def test_a_language_model_is_no_projector() -> None:
    with pytest.raises(AppError, match="not the image or audio part"):
        projector_of(llama())
