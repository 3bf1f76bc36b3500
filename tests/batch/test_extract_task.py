"""What a document says as JSON: over all its parts, without doubles, and only what it says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from task_tools import Means, job_of, result_of

from workhorse.batch.task import ItemFailed

EMPTY: dict[str, list[str]] = {
    "people": [],
    "organisations": [],
    "places": [],
    "dates": [],
    "amounts": [],
}
NAMES = [f"Person{n}" for n in range(400)]
LETTER = "".join(f"{name} wrote to the Office. She lives in Bonn.\n\n" for name in NAMES)


def finds(prompt: str) -> str:
    """All that is to be found in a part, as a good model would."""
    text = prompt.partition("\n\nText:\n")[2]
    found = {
        "people": re.findall(r"Person\d+", text),
        "places": re.findall("Bonn", text),
        "organisations": re.findall("Office", text),
    }
    once = {
        key: list(dict.fromkeys(names))[:30] for key, names in found.items()
    }  # the schema's most
    return json.dumps(EMPTY | once)


async def test_a_long_document_gives_each_name_once_in_its_order() -> None:
    means = Means(finds, context_tokens=2048)
    result = await result_of(job_of("entities"), LETTER, means)
    assert result.value == EMPTY | {
        "people": NAMES,
        "places": ["Bonn"],
        "organisations": ["Office"],
    }
    assert len(means.requests) > 4
    assert any("parts" in note for note in result.notes)
    formats = [request.body["response_format"] for request in means.requests.values()]
    assert formats[0]["json_schema"]["schema"]["properties"].keys() == EMPTY.keys()


async def test_a_full_list_or_a_cut_answer_is_asked_for_in_smaller_parts() -> None:
    def says(prompt: str) -> str | tuple[str, str]:
        long = prompt.count("Person") > 80
        return ('{"people": ["Person', "length") if long else finds(prompt)

    result = await result_of(
        job_of("entities", {"piece_tokens": 100_000}), LETTER, Means(says, context_tokens=32768)
    )
    assert result.value["people"] == NAMES


async def test_what_the_model_makes_up_is_left_out_and_told() -> None:
    said = json.dumps(EMPTY | {"people": ["Ada Lovelace", "John Smith"], "dates": ["1843"]})
    job = job_of("entities")
    result = await result_of(job, "In 1843 Ada\nLovelace wrote.", Means(lambda _: said))
    assert result.value == EMPTY | {"people": ["Ada Lovelace"], "dates": ["1843"]}
    assert ["John Smith" in note for note in result.notes] == [True]
    kept = await result_of(
        job_of("entities", {"only_from_text": False}), "In 1843.", Means(lambda _: said)
    )
    assert kept.value["people"] == ["Ada Lovelace", "John Smith"]


async def test_prose_round_the_json_is_told() -> None:
    said = f"Here is the JSON:\n```json\n{json.dumps(EMPTY)}\n```\nI hope this helps!"
    result = await result_of(job_of("entities"), "Nobody is here.", Means(lambda _: said))
    assert result.value == EMPTY
    assert result.notes == ("the answer's JSON was repaired",)


@pytest.mark.parametrize("said", ["I cannot do that.", '{"people": "Ada"}', ('{"peo', "length")])
async def test_an_answer_of_another_form_is_no_result(said: str | tuple[str, str]) -> None:
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("entities"), "Ada wrote.", Means(lambda _: said))
    assert failed.value.reason.cause == "not valid"


BILL: dict[str, Any] = {
    "type": "object",
    "required": ["sum", "kind"],
    "properties": {
        "sum": {"type": ["number", "null"]},
        "kind": {"enum": ["bill", "letter"]},
        "items": {"type": "array", "items": {"type": "string"}},
    },
}


async def test_a_schema_of_the_users_own_is_asked_for_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "bill.json"
    path.write_text(json.dumps(BILL), encoding="utf-8")
    said = ['{"sum": "a lot", "kind": "bill"}', '{"sum": 12.5, "kind": "bill", "items": ["fan"]}']
    means = Means(lambda _: said[means.asked - 1])
    result = await result_of(job_of("extract", {"schema": str(path)}), "A fan, 12.50.", means)
    assert result.value == {"sum": 12.5, "kind": "bill", "items": ["fan"]}
    (request,) = means.requests.values()
    assert json.dumps(BILL, separators=(",", ":")) in request.body["messages"][0]["content"]


async def test_parts_that_differ_in_a_field_are_told() -> None:
    def says(prompt: str) -> str:
        total = re.search(r"total (\d+)", prompt)
        return json.dumps({"sum": int(total[1]) if total else None, "kind": "bill"})

    text = "Nothing yet.\n\n" * 900 + "total 5.\n\n" + "More.\n\n" * 900 + "total 7."
    means = Means(says, context_tokens=2048)
    result = await result_of(job_of("extract", {"schema": BILL}), text, means)
    assert result.value == {"sum": 5, "kind": "bill"}
    assert any("`sum`: 5, 7" in note for note in result.notes)
