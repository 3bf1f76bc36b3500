"""Docstrings go into Python files and nothing else changes, whatever the file and the words are."""

import ast
import io
import re
import sysconfig
import tokenize
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.batch.source_code.parameters import only_known
from workhorse.batch.source_code.place import NoComment, NotCommentable
from workhorse.batch.source_code.python_code import PythonCode, docstring
from workhorse.batch.source_code.wording import columns_of, plain

LIBRARY = Path(sysconfig.get_path("stdlib"))
# Of every kind: decorators, nesting, one-liners, long headers, classes by the dozen, old tabs.
MODULES = ["ast.py", "dataclasses.py", "enum.py", "functools.py", "inspect.py", "tarfile.py",
           "typing.py", "smtplib.py", "json/decoder.py", "asyncio/tasks.py"]  # fmt: skip


def commented(text: str, comment: str, **options: bool) -> str:
    code = PythonCode(text, **options)
    return code.with_comments(dict.fromkeys(range(len(code.places)), comment)).decode()


def without_docstrings(text: str) -> tuple[str, list[str]]:
    """What Python makes of a file but for docstrings, and its comments: by Python alone."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and isinstance(body, list)
            and ast.get_docstring(node, clean=False) is not None
        ):
            del body[0]
    tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return ast.dump(tree), comments


def docstrings(text: str) -> list[str | None]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [ast.get_docstring(n) for n in ast.walk(ast.parse(text)) if isinstance(n, kinds)]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_the_standard_library_stays_what_it_is(name: str, replace: bool) -> None:
    text = (LIBRARY / name).read_text(encoding="utf-8")
    after = commented(text, 'Say "what".\n\nWith \\ and """.', replace=replace)
    assert without_docstrings(after) == without_docstrings(text)
    said = 'Say "what".\n\nWith \\ and """.'
    found = docstrings(after)
    assert found.count(said) >= (len(found) * 0.8 if replace else 1)
    if not replace:  # taking out what was put in gives the file back, but for white space
        literal = r'"""Say "what"\.\s+With \\\\ and ""\\"\.\s+"""'
        assert "".join(re.sub(literal, "", after).split()) == "".join(text.split())


HARD = {
    "one line": "def f(a): return a\n",
    "one line, no space": "class A:x = 1;y = 2\n",
    "one line with tabs": "class A:\n\tdef f(self): pass\n\tx = 1\n",
    "a comment behind the colon": "def f():  # why: not\n    # c\n    return {1: 2}\n",
    "lambdas in the header": "def f(a=lambda x: {x: 1}, *b, c: ':' = 1) -> lambda: 3:\n  pass\n",
    "a header of many lines": "def f(\n    a,  # :\n    b,\n) -> dict[int, str]:\n\n    return 1\n",
    "decorated inside": "class A:\n    @d(\n        1\n    )\n    def f(self): ...\n",
    "windows": "# c\r\nimport os\r\n\r\ndef f():\r\n    return '''a\r\nb'''\r\n",
    "old mac": "def f():\r    return 1\r",
    "no end of line": "def f():\n    return 1",
    "marked": "\ufeff# c\n\ndef f(): pass\n",
    "wide": "def 函数(参数):\n    '中'; return '文'\ndef g(): return '中文'\n",
    "future": "#!/usr/bin/env python\n# coding: utf-8\nfrom __future__ import annotations\n",
    "form feeds": "x = 1\n\f\ndef f():\n\f    return 1\n",
    "in branches": "if 1:\n  try:\n    def f():\n      pass\n  except E:\n    class A: pass\n",
    "continued": "def f(a, \\\n      b): \\\n    return a\ndef g(): return 1\n",
    "async": "class A:\n    async def f(self):\n        async def g(): pass\n        await g()\n",
}


@pytest.mark.parametrize("case", HARD)
@given(words=st.text(min_size=1, max_size=200))
@settings(deadline=None, max_examples=25)
def test_whatever_the_words_are(case: str, words: str) -> None:
    text = HARD[case]
    code = PythonCode(text)
    comments = {}
    for index, place in enumerate(code.places):
        try:
            comments[index], _ = code.comment(place, words)
        except NoComment:
            continue
    after = code.with_comments(comments).decode()
    bare = text.removeprefix("\ufeff")
    assert without_docstrings(after.removeprefix("\ufeff")) == without_docstrings(bare)
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    if "\r\n" in text:
        assert "\n" not in after.replace("\r\n", "")


@pytest.mark.parametrize("case", HARD)
def test_every_definition_gets_its_docstring(case: str) -> None:
    after = commented(HARD[case], "Does it.").removeprefix("\ufeff")
    missing = {"continued": 1, "wide": 0}.get(case, 0)  # a body behind a backslash has no place
    assert docstrings(after).count("Does it.") >= len(docstrings(after)) - 1 - missing
    assert None not in docstrings(after) or missing


@given(
    words=st.text(alphabet=st.sampled_from("a \\\"'\n\t中，{}%"), max_size=120),
    indent=st.sampled_from(["", "    ", "\t\t"]),
)
@settings(deadline=None)
def test_a_literal_is_what_was_said(words: str, indent: str) -> None:
    literal, value = docstring(plain(words), indent)
    assert ast.literal_eval(literal) == value
    assert literal.startswith('"""')
    assert " \n" not in literal


def test_how_it_looks() -> None:
    text = (
        "#!/usr/bin/env python\n# Copyright\n\nimport os\n\n\n"
        "class Fan:\n    def spin(self, rpm): return rpm\n"
    )
    long = "Turn it. " + "It turns as fast as the caller wants and no faster than that. " * 2
    code = PythonCode(text)
    after = code.with_comments({0: "Fans.", 1: "A fan.", 2: long.strip()}).decode()
    assert after == (
        '#!/usr/bin/env python\n# Copyright\n"""Fans."""\n\nimport os\n\n\n'
        'class Fan:\n    """A fan."""\n\n    def spin(self, rpm):\n'
        '        """Turn it. It turns as fast as the caller wants and no faster than that. It\n'
        "        turns as fast as the caller wants and no faster than that.\n"
        '        """\n        return rpm\n'
    )


def test_a_long_line_of_chinese_is_broken() -> None:
    literal, _ = docstring("读取文件，返回内容。" * 20, "    ")
    assert all(columns_of(line) <= 88 for line in literal.split("\n"))
    assert not any(line.lstrip().startswith(("，", "。")) for line in literal.split("\n"))


def test_what_a_file_cannot_write_is_escaped() -> None:
    code = PythonCode("# coding: latin-1\ndef f():\n    pass\n", charset="latin-1")
    after = code.with_comments({1: "Café 中"}).decode()
    assert '"""Café \\u4e2d"""' in after
    after.encode("latin-1")


def test_who_gets_none() -> None:
    text = (
        "from typing import overload\n@overload\ndef f(a: int) -> int: ...\n"
        "def f(a):\n    'Has one.'\ndef _g():\n    def inner(): pass\n"
        "class A:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...\n"
    )
    assert [p.name for p in PythonCode(text).places] == ["", "_g", "_g.inner", "A", "A.x"]
    assert [p.name for p in PythonCode(text, private=False).places] == ["", "A", "A.x"]
    assert "f" in [p.name for p in PythonCode(text, replace=True).places]


@pytest.mark.parametrize(
    "text",
    ["def f(:\n", "print 'two'\n", "x = '\0'\n", "def f():\n\tif 1:\n        pass\n", "(" * 5000,
     "x = " + "-" * 200_000 + "1", "x = '\ud800'\n", "x" * 5_000_000],
    ids=["syntax", "python 2", "zero", "tabs", "brackets", "deep", "half", "huge"],
)  # fmt: skip
def test_a_file_that_does_not_parse_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(NotCommentable) as refused:
        PythonCode(text)
    assert refused.value.seen
    assert refused.value.seen_zh


ANSWERS = {
    "plain": "Say it.",
    "quoted": '"Say it."',
    "in quotes": '"""Say it."""',
    "in a fence": "```python\n'''Say it.'''\n```",
    "announced": "Here is the docstring:\n```\nSay it.\n```",
    "with the code": '```python\ndef f(a):\n    """Say it."""\n    return a\n```',
    "with broken code": 'def f(a):\n    """Say it."""\n    return (a\n',
    "after thoughts": "<think>hm\n</think>\nSay it.",
    "hidden marks": "\u202eSay\u0000 it.\u2066\x1b",
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_words_are_taken_out_of_an_answer(case: str) -> None:
    code = PythonCode("def f(a): return a\n")
    assert code.comment(code.places[1], ANSWERS[case]) == ("Say it.", ())


@pytest.mark.parametrize("answer", ["", "```\n```", "def f(a):\n    return a\n", "x\n" * 200])
def test_what_is_no_comment_is_refused(answer: str) -> None:
    code = PythonCode("def f(a): return a\n")
    with pytest.raises(NoComment):
        code.comment(code.places[1], answer)


# What is said of parameters where there is only `a`, and what is left of it.
FORMS = {
    "google": (
        "Do.\n\nArgs:\n    a: one\n        more\n    b (int): two\n    **c: three\n\n"
        "Returns:\n    x: y",
        "Do.\n\nArgs:\n    a: one\n        more\n\nReturns:\n    x: y",
    ),
    "flat": (
        "Do.\nArgs:\na: one\nb: two\nmore of it\nReturns:\nb: x",
        "Do.\nArgs:\na: one\nReturns:\nb: x",
    ),
    "marked": (
        "Do.\n\n**Parameters:**\n- `a`: one\n- `b`: two",
        "Do.\n\n**Parameters:**\n- `a`: one",
    ),
    "all of them": ("Do.\n\nArgs:\n    b: two\n\nReturns:\n    it", "Do.\n\nReturns:\n    it"),
    "numpy": (
        "Do.\n\nParameters\n----------\na : int\n    one\nb : int\n    two\n\n"
        "Returns\n-------\nint",
        "Do.\n\nParameters\n----------\na : int\n    one\n\nReturns\n-------\nint",
    ),
    "sphinx": (
        "Do.\n\n:param a: one\n:param int b: two\n    more\n:returns: it",
        "Do.\n\n:param a: one\n:returns: it",
    ),
    "javadoc": (
        "Do.\n@param a one\n@param {int} b two\n@return it",
        "Do.\n@param a one\n@return it",
    ),
    "chinese": (
        "做。\n\n参数：\n    a：一\n    b：二\n\n返回：\n    值",
        "做。\n\n参数：\n    a：一\n\n返回：\n    值",
    ),
    "prose": ("Give a and b: both.\n\nNote: b: is not here.",) * 2,
}


@pytest.mark.parametrize("case", FORMS)
def test_parameters_that_are_not_there_are_dropped(case: str) -> None:
    said, kept = FORMS[case]
    text, dropped = only_known(said, {"a"})
    assert text == kept
    assert dropped == {"prose": (), "google": ("b", "c")}.get(case, ("b",))


@given(st.text(max_size=300))
@settings(deadline=None)
def test_nothing_is_dropped_that_names_no_parameter(text: str) -> None:
    text = plain(text)
    kept, dropped = only_known(text, set())
    assert dropped or set(kept.split()) == set(text.split())


def test_what_a_function_takes_by_keyword_is_a_parameter() -> None:
    code = PythonCode(
        "def f(a, /, *b, c=1, **more):\n    return more.pop('size')\n"
        "class A:\n    x: int\n    def __init__(self, y): ...\nclass B(A): pass\n"
    )
    parameters = {place.name: place.parameters for place in code.places}
    assert parameters["f"] == {"a", "b", "c", "more", "size"}
    assert parameters["A"] == {"x", "y"}
    assert parameters["B"] is None
