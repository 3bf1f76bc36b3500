"""Templates: what of them is certain to be shared, whose request is whose, what they saved."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.engines.find import embedded_build
from workhorse.errors import AppError
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.serve.template_files import LARGEST_BYTES, read_templates
from workhorse.serve.templates import (
    PROBES,
    Ledger,
    Matcher,
    Template,
    setup_of,
    shared_tokens,
    slots_for,
    state_key,
)
from workhorse.settings import Settings, TemplateSettings

CLERK = Template("clerk", None, (("system", "You are a clerk."),), "", True)
SHOTS = Template("shots", "m", (*CLERK.messages, ("user", "Hi"), ("assistant", "Ho")), "", True)
CODE = Template("code", None, (), "# licence\n", False)


def chat(*said: tuple[str, object]) -> bytes:
    return json.dumps([{"role": role, "content": content} for role, content in said]).encode()


TOKENS = st.lists(st.integers(0, 3), max_size=6)


@given(st.lists(TOKENS, min_size=1, max_size=5))
def test_shared_tokens_begin_every_prompt_and_no_longer_ones_do(prompts: list[list[int]]) -> None:
    found = list(shared_tokens(prompts))
    assert all(prompt[: len(found)] == found for prompt in prompts)
    longer = {tuple(prompt[: len(found) + 1]) for prompt in prompts}
    assert len(longer) > 1 or longer == {tuple(found)}


def test_a_chat_is_probed_with_each_beginning_of_the_clients_words() -> None:
    probes = SHOTS.probes()
    assert len(probes) == len(PROBES)
    assert all(probe[:3] == probes[0][:3] for probe in probes)
    assert {probe[3]["content"] for probe in probes if isinstance(probe, list)} == set(PROBES)
    assert CODE.probes()[0] == "# licence\nA"


def test_a_state_is_another_ones_with_any_other_token_or_setting() -> None:
    plan = make_plan(builders.machine(), builders.model(), embedded_build(), Wish())
    setups = {
        setup_of(plan, "one"),
        setup_of(plan, "two"),
        setup_of(replace(plan, kv_type_k="q8_0"), "one"),
        setup_of(replace(plan, kv_type_v="q8_0"), "one"),
        setup_of(replace(plan, shared_kv=not plan.shared_kv), "one"),
        setup_of(replace(plan, context_tokens=plan.context_tokens + 1), "one"),
        setup_of(replace(plan, engine=replace(plan.engine, version="other")), "one"),
    }
    keys = {state_key(setup, tokens) for setup in setups for tokens in ([1, 2], [12], [1, 2, 3])}
    assert len(setups) == 7
    assert len(keys) == 21
    assert state_key("s", [1, 2]) == state_key("s", (1, 2))


@pytest.mark.parametrize(
    ("requests", "slots", "found"),
    [
        ([0, 0], 4, (0, 1, 0, 1)),
        ([0, 0, 0], 2, (0, 1)),
        ([1, 5], 1, (1,)),
        ([90, 10], 4, (0, 1, 0, 0)),
        ([], 2, ()),
    ],
)
def test_every_template_gets_a_slot_and_the_rest_go_to_those_asked_for_most(
    requests: list[int], slots: int, found: tuple[int, ...]
) -> None:
    assert slots_for(requests, slots) == found


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (chat(("system", "You are a clerk."), ("user", "x")), CLERK),
        (chat(("system", [{"type": "text", "text": "You are a clerk."}]), ("user", "x")), CLERK),
        (chat(("system", "You are a clerk."), ("user", "Hi"), ("assistant", "Ho")), SHOTS),
        (chat(("system", "You are a clerk.\r\n"), ("user", "x")), CLERK),
        (chat(("system", "You are a clerk. "), ("user", "x")), None),
        (chat(("system", [{"type": "image_url"}]), ("user", "x")), None),
        (b'"# licence\\nint main"', CODE),
        (b'"int main"', None),
        (b"[1, 2, 3]", None),
        (b'"broken', None),
        (b'"Be brief."[{"role": "user", "content": "x"}]', None),
        (b"", None),
    ],
)
def test_whose_request_is_whose(prompt: bytes, found: Template | None) -> None:
    assert Matcher((CLERK, SHOTS, CODE)).match("m", prompt) == found


def test_a_template_of_another_model_does_not_match() -> None:
    longer = chat(("system", "You are a clerk."), ("user", "Hi"), ("assistant", "Ho"))
    assert Matcher((CLERK, SHOTS)).match("other", longer) == CLERK


def test_hits_and_saved_seconds_come_from_the_engines_counts() -> None:
    ledger = Ledger((CLERK,))
    tally = ledger.of(CLERK, "m")
    assert tally.hit_rate is None
    tally.tokens = 1000
    ledger.prefilled("m", 1000, 10.0)
    asked = chat(("system", "You are a clerk."), ("user", "x"))
    ledger.answered("m", asked, 1010)  # a little of the user's words as well
    ledger.answered("m", asked, 400)
    ledger.answered("m", asked, None)
    ledger.answered("m", chat(("user", "x")), 1000)
    assert (tally.requests, tally.hits, tally.saved_tokens) == (3, 1, 1400)
    assert tally.saved_s == pytest.approx(14.0)
    assert ledger.others_since(CLERK, "m") == 1
    ledger.prefilled("m", 300, 1.0)  # faster now: what is saved from here on takes less
    ledger.answered("m", asked, 1000)
    assert tally.saved_s == pytest.approx(14.0 + 1000 / 200)
    assert ledger.others_since(CLERK, "m") == 0


def declared(**fields: object) -> TemplateSettings:
    return msgspec.convert({"name": "one", **fields}, TemplateSettings)


def test_a_document_follows_the_system_prompt(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("Rule 1.")
    shot = {"role": "user", "content": "Hi"}
    found = read_templates(
        [declared(system="Be brief.", document_file="rules.txt", messages=[shot])], tmp_path
    )
    assert found[0].messages == (("system", "Be brief.\n\nRule 1."), ("user", "Hi"))
    assert read_templates([declared(prefix="x")], tmp_path)[0].prefix == "x"


def test_the_line_end_that_editors_put_last_is_not_in_a_template(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("Be brief.\n")
    (tmp_path / "rules.txt").write_bytes(b"Rule 1.\r\n")
    shot = {"role": "user", "content": "Hi\n"}
    (found,) = read_templates(
        [declared(system_file="system.txt", document_file="rules.txt", messages=[shot])], tmp_path
    )
    assert found.messages == (("system", "Be brief.\n\nRule 1."), ("user", "Hi"))
    asked = chat(("system", "Be brief.\n\nRule 1.\n"), ("user", "Hi\n"), ("user", "x"))
    assert Matcher((found,)).match("m", asked) == found


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([{}], "has no text"),
        ([{"system": "a", "system_file": "b"}], "both system and system_file"),
        ([{"prefix": "a", "system": "b"}], "both a prefix"),
        ([{"system_file": "missing"}], "No such file"),
        ([{"system_file": "latin"}], "not UTF-8"),
        ([{"prefix_file": "large"}], str(LARGEST_BYTES)),
        ([{"system": "a"}, {"system": "b"}], "declared 2 times"),
    ],
)
def test_what_is_wrong_with_a_template_is_told(
    tmp_path: Path, fields: list[dict[str, str]], says: str
) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(LARGEST_BYTES + 1)
    with pytest.raises(AppError, match=says) as raised:
        read_templates([declared(**one) for one in fields], tmp_path)
    assert "one" in raised.value.what.zh


@pytest.mark.parametrize(
    "toml", ['[[template]]\nname = "../x"', '[[template]]\nname = "a"\ntext = "b"', "[[template]]"]
)
def test_a_template_that_is_no_template_is_refused(toml: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.toml.decode(toml, type=Settings)
