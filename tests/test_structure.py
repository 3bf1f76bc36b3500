"""The rules of the house that no linter knows."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
KNOWLEDGE = ROOT / "src/workhorse/knowledge"
# The rules say "about 400" and "about 60".
LONGEST_FILE = 420
LONGEST_FUNCTION = 65
# Names for a place where anything may be put.
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "handler", "common", "misc"}
# Written in parts, so that this file passes its own test.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("debian", "org/debian"),
        ("ubuntu", "com/ubuntu"),
        ("tuna", "tsinghua"),
        ("mirrors", "aliyun"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:work|root|home/\w+|tmp/w)/")
# Logs and the tests of taking paths out have the paths of other people's machines.
OTHER_MACHINES = re.compile(r"/(?:root|home/\w+)/")
WITH_OTHER_MACHINES = (
    "tests/diagnose/",
    "tests/machine/",
    "src/workhorse/machine/personal_data.py",
)


def our_files() -> list[Path]:
    """Every file of the project; what tools leave behind (.gitignore) is none of it."""
    built = {"__pycache__", "build", "dist"}
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not built.intersection(parts := path.relative_to(ROOT).parts)
        and (not parts[0].startswith(".") or parts[0] == ".ci")
    )


FILES = our_files()
PYTHON = [path for path in FILES if path.suffix == ".py"]
PRODUCT = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_files_are_found() -> None:
    assert {"src/workhorse/codec.py", "tests/test_structure.py"} <= {shown(p) for p in PYTHON}


def test_no_file_is_long() -> None:
    lengths = {shown(p): len(p.read_text(encoding="utf-8").splitlines()) for p in PYTHON}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_no_function_is_long() -> None:
    lengths = {
        f"{shown(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in PYTHON
        for node in functions(path)
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}


def test_every_module_has_a_name_that_says_something() -> None:
    empty = [shown(path) for path in PYTHON if EMPTY_NAMES & {path.stem, *path.stem.split("_")}]
    assert empty == []


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_registry_is_named_by_its_host(host: str) -> None:
    """Users in other networks have other mirrors; the package clients know where to go."""
    assert [shown(path) for path in FILES if host in text_of(path)] == []


def test_no_path_of_a_developers_machine() -> None:
    found = [
        f"{shown(path)}: {match[0]}"
        for path in FILES
        if path != Path(__file__).resolve()
        for match in MACHINE_PATH.finditer(text_of(path))
        if not (shown(path).startswith(WITH_OTHER_MACHINES) and OTHER_MACHINES.match(match[0]))
    ]
    assert found == []


TABLES = sorted(KNOWLEDGE.rglob("*.toml"))


def rows_without_a_source(table: dict[str, Any]) -> list[str]:
    """The rows that nobody can check: no source or date, of their own or of the whole file."""
    if {"source", "date"} <= table.keys():
        return []
    return [
        f"{array}[{index}]"
        for array, rows in table.items()
        for index, row in enumerate(rows if isinstance(rows, list) else [rows])
        if not (isinstance(row, dict) and {"source", "date"} <= row.keys())
    ]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_is_known_says_from_where_and_when(path: Path) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert table
    assert rows_without_a_source(table) == []


def test_a_row_without_a_source_is_found() -> None:
    table = {"gpu": [{"name": "a", "source": "s", "date": "d"}, {"name": "b", "source": "s"}]}
    assert rows_without_a_source(table) == ["gpu[1]"]
    assert rows_without_a_source(table | {"limit": 3}) == ["gpu[1]", "limit[0]"]


def test_knowledge_is_data() -> None:
    """The modules of knowledge/ read tables; a table of figures in code has no source to check."""
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in KNOWLEDGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Dict | ast.List | ast.Tuple)
        for values in [node.values if isinstance(node, ast.Dict) else node.elts]
        if sum(isinstance(v, ast.Constant) and isinstance(v.value, int | float) for v in values) > 3
    ]
    assert found == []


def test_the_wheel_holds_the_tables_and_texts_as_well(tmp_path: Path) -> None:
    """What `pip install .` installs: every file of the package, not only the modules."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("workhorse/")}
    source = ROOT / "src"
    assert packed == {str(p.relative_to(source)) for p in FILES if p.is_relative_to(source)}
    assert {"workhorse/knowledge/quants.toml", "workhorse/bench/corpus.txt"} <= packed
