"""The recipe for every generation: complete, pinned, best first."""

import re
from typing import Any

import pytest

from workhorse.knowledge import rows
from workhorse.knowledge.gpus import cards
from workhorse.knowledge.recipes import Recipe, recipes, recipes_for

CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize(
    ("capability", "engines"),
    [
        ((3, 0), []),
        ((3, 5), ["llama.cpp"]),
        ((3, 7), ["llama.cpp"]),
        ((5, 0), ["llama.cpp"]),
        ((5, 2), ["llama.cpp"]),
        ((6, 0), ["llama.cpp"]),
        ((6, 1), ["llama.cpp"]),
        ((7, 0), ["llama.cpp", "lmdeploy", "vllm", "vllm"]),
        ((7, 5), ["llama.cpp", "lmdeploy", "vllm"]),
        ((8, 0), ["vllm", "llama.cpp", "sglang"]),
        ((8, 6), ["vllm", "llama.cpp", "sglang"]),
        ((9, 0), ["vllm", "llama.cpp", "sglang"]),
        ((12, 0), ["vllm", "llama.cpp"]),
        ((13, 0), []),
    ],
)
def test_what_is_recommended(capability: tuple[int, int], engines: list[str]) -> None:
    assert [recipe.engine for recipe in recipes_for(capability)] == engines


@pytest.mark.parametrize("capability", sorted({card.capability for card in cards()}), ids=str)
def test_every_card_that_an_engine_knows_has_one_without_open_places(
    capability: tuple[int, int],
) -> None:
    found = recipes_for(capability)
    assert bool(found) == (capability >= (3, 5))
    for recipe in found:
        text = " ".join((*recipe.install, recipe.start, *recipe.environment))
        assert "{" not in text
        if recipe.engine == "llama.cpp":
            assert f"CMAKE_CUDA_ARCHITECTURES={capability[0]}{capability[1]}" in text


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.id)
def test_a_recipe_is_pinned_and_says_what_it_costs(recipe: Recipe) -> None:
    for line in recipe.install:
        if "pip install" in line:
            assert re.search(r"==[\d.]+", line)
    for text in (recipe.gives, recipe.gives_up):
        assert text.en and CHINESE.search(text.zh) and not CHINESE.search(text.en)
    # The first version is the engine's own, as the first pin says it.
    assert recipe.versions and recipe.start and recipe.versions[0].startswith(recipe.engine)
    assert re.fullmatch(r"20\d\d-\d\d", recipe.date) and len(recipe.source) > 8


def test_no_two_recipes_of_a_card_have_one_rank() -> None:
    for capability in {card.capability for card in cards()}:
        ranks = [recipe.rank for recipe in recipes_for(capability)]
        assert ranks == sorted(set(ranks))


def test_volta_is_pinned_to_the_last_versions_that_have_its_code() -> None:
    llama, lmdeploy, vllm, old = recipes_for((7, 0))
    assert llama.needs["driver"] == ">=525,<590"
    assert "torch==2.10.0" in lmdeploy.install[1]
    assert "vllm==0.19.1" in vllm.install[1] and "TRITON_ATTN" in vllm.start
    assert old.environment == ("VLLM_ATTENTION_BACKEND=XFORMERS",)
    assert "xformers==0.0.30" in old.install[1]


def test_needs_are_compared_with_what_is_known_only() -> None:
    lmdeploy = recipes_for((7, 0))[1]
    assert lmdeploy.unmet({}) == ()
    assert lmdeploy.unmet({"driver": "580.95.05", "glibc": "2.28"}) == ()
    assert lmdeploy.unmet({"driver": "590.44", "glibc": "2.17"}) == ("driver", "glibc")
    assert lmdeploy.unmet({"driver": "N/A"}) == ()


@pytest.mark.parametrize(
    "change", [{"needs": {"luck": ">=1"}}, {"needs": {"driver": "new"}}, {"capability": "volta"}]
)
def test_a_malformed_recipe_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    good = rows.table("recipes")["recipe"][0]
    monkeypatch.setattr(rows, "table", lambda name: {"recipe": [good | change]})
    with pytest.raises(ValueError):
        rows.rows("recipes", "recipe", Recipe)


def test_builds_of_new_toolkits_run_under_the_oldest_driver_that_they_name() -> None:
    # By default the code is packed so that drivers before 550.54.14 refuse it.
    for recipe in recipes():
        for line in recipe.install:
            if "{sm}-real" in line:
                assert "-DGGML_CUDA_COMPRESSION_MODE=none" in line, recipe.id
