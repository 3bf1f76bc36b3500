"""Each function of a file is asked about by itself; what comes back goes into it."""

import re

import pytest
from task_tools import Means, job_of, result_of

from workhorse.batch.task import ItemFailed

CODE = '''import os


class Fan:
    """A fan."""

    def spin(self, rpm):
        return rpm


def stop(fan):
    fan.spin(0)
'''
PYTHON = "text/x-python"


def named(prompt: str) -> str:
    found = re.search(r"Python (?:function|class|函数|类) (\S+)", prompt)
    return f"Do {found[1] if found else 'all'}."


async def test_the_comments_go_into_the_file() -> None:
    means = Means(named)
    result = await result_of(job_of("code-comments"), CODE, means, PYTHON)
    assert result.file
    assert result.notes == ()
    assert result.text == CODE.replace("import os\n", '"""Do all."""\n\nimport os\n').replace(
        "rpm):\n", 'rpm):\n        """Do Fan.spin."""\n'
    ).replace("stop(fan):\n", 'stop(fan):\n    """Do stop."""\n')
    assert list(means.requests) == [f"comment {n} of 3" for n in (1, 2, 3)]
    assert means.counted == []  # nothing here is near the size of the context
    spin = means.prompts()[1]
    assert "class Fan:" in spin
    assert spin.endswith("return rpm")


async def test_what_there_is_is_replaced_when_asked_to() -> None:
    result = await result_of(
        job_of("code-comments", {"existing": "replace"}), CODE, Means(named), PYTHON
    )
    assert '"""Do Fan."""' in str(result.text)
    assert "A fan." not in str(result.text)


async def test_a_comment_that_does_not_come_is_told_and_the_others_stay() -> None:
    means = Means(lambda prompt: "" if "function stop" in prompt else named(prompt))
    result = await result_of(job_of("code-comments"), CODE, means, PYTHON)
    assert '"""Do Fan.spin."""' in str(result.text)
    assert "stop(fan):\n    fan.spin(0)" in str(result.text)
    assert result.notes[0].startswith("without a comment: stop (")
    assert means.asked == 2 + means.attempts


async def test_a_file_that_gets_no_comment_at_all_has_failed() -> None:
    means = Means(lambda _: ("Do it", "length"))
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("code-comments"), CODE, means, PYTHON)
    assert failed.value.reason.cause == "not valid"


async def test_parameters_that_are_not_there_are_told() -> None:
    means = Means(lambda _: "Do it.\n\nArgs:\n    rpm: speed\n    size: none")
    result = await result_of(job_of("code-comments"), CODE, means, PYTHON)
    assert "size" not in str(result.text)
    assert "rpm: speed" in str(result.text)
    assert any(note.startswith("Fan.spin: ") and "size" in note for note in result.notes)


async def test_a_function_longer_than_the_context_is_read_from_its_beginning() -> None:
    long = "def f():\n" + "".join(f"    x{n} = {n}\n" for n in range(2000))
    means = Means(named, context_tokens=1024)
    result = await result_of(job_of("code-comments"), long, means, PYTHON)
    assert '    """Do f."""\n    x0 = 0\n' in str(result.text)
    assert "only the beginning was read" in result.notes[0]


async def test_nothing_to_do() -> None:
    code = '"""All is said."""\n'
    means = Means(named)
    result = await result_of(job_of("code-comments"), code, means, PYTHON)
    assert result.text == code
    assert result.notes == ("nothing in it lacks a comment",)
    assert means.asked == 0


@pytest.mark.parametrize(
    ("media_type", "text", "why"),
    [(PYTHON, "def f(:\n", "line 1"), ("text/markdown", "# Fans\n", "no Python file")],
)
async def test_what_is_no_python_is_set_aside_with_the_reason(
    media_type: str, text: str, why: str
) -> None:
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("code-comments"), text, Means(named), media_type)
    assert failed.value.reason.cause == "unreadable"
    assert why in failed.value.reason.seen


async def test_who_comments_in_chinese_gets_chinese() -> None:
    code = "# 读取风扇转速并返回结果，单位为每分钟转数\ndef f(rpm):\n    return rpm\n"
    means = Means(lambda _: "返回转速。")
    result = await result_of(job_of("code-comments"), code, means, f"{PYTHON}; charset=gb18030")
    assert '"""返回转速。"""' in str(result.text)
    assert all("请为" in prompt for prompt in means.prompts())
