"""A document gets one of the user's labels, or several; a long one by the weight of its parts."""

import json

import pytest
from task_tools import Means, job_of, result_of

from workhorse.batch.task import ItemFailed
from workhorse.errors import AppError

LABELS = {"bill": "asks for money", "praise": "", "投诉": "客户不满意"}
LONG = "Please pay 5 euros.\n\n" * 600 + "You are great.\n\n" * 300


def weighs(prompt: str) -> str:
    text = prompt.partition("Document:\n")[2]
    return "bill" if text.count("pay") > text.count("great") else "praise"


async def test_the_labels_are_all_that_the_engine_may_say() -> None:
    means = Means(lambda _: '{"label": "投诉"}')
    result = await result_of(job_of("classify", {"labels": LABELS}), "It broke again!", means)
    assert result.value == {"label": "投诉"}
    (request,) = means.requests.values()
    schema = request.body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["label"]["enum"] == list(LABELS)
    assert (
        "- bill: asks for money\n- praise\n- 投诉: 客户不满意"
        in request.body["messages"][0]["content"]
    )


async def test_a_long_document_has_the_label_of_most_of_it() -> None:
    means = Means(lambda prompt: json.dumps({"label": weighs(prompt)}), context_tokens=1024)
    result = await result_of(job_of("classify", {"labels": LABELS}), LONG, means)
    assert result.value == {"label": "bill"}
    assert len(means.requests) > 3
    (note,) = result.notes
    assert "bill 67%, praise 33%" in note


async def test_several_labels_of_all_parts() -> None:
    means = Means(lambda prompt: json.dumps({"labels": [weighs(prompt)]}), context_tokens=1024)
    result = await result_of(job_of("classify", {"labels": LABELS, "several": "yes"}), LONG, means)
    assert result.value == {"labels": ["bill", "praise"]}
    none = Means(lambda _: '{"labels": []}')
    found = await result_of(job_of("classify", {"labels": LABELS, "several": True}), "Hm.", none)
    assert found.value == {"labels": []}


@pytest.mark.parametrize("said", ["Bill.", '"bill"', "**bill**", 'It is {"label": "bill"}.'])
async def test_a_label_without_its_json_is_taken_and_told(said: str) -> None:
    result = await result_of(job_of("classify", {"labels": LABELS}), "Pay!", Means(lambda _: said))
    assert result.value == {"label": "bill"}
    assert len(result.notes) == 1


@pytest.mark.parametrize("said", ["bill or praise", '{"label": "other"}', ("bill", "length")])
async def test_what_names_no_label_is_no_result(said: str | tuple[str, str]) -> None:
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("classify", {"labels": LABELS}), "Pay!", Means(lambda _: said))
    assert failed.value.reason.cause == "not valid"


def test_labels_have_to_be_given() -> None:
    with pytest.raises(AppError) as refused:
        job_of("classify")
    assert "`labels`" in refused.value.what.en
