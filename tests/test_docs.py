"""The docs say what is so: commands, links, targets; the README's examples are run for real."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from workhorse import __version__
from workhorse.cli import VERBS
from workhorse.cli.fleet import SUB_COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
READMES = ["README.md", "README.zh.md"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_blocks(text: str) -> list[tuple[str, str]]:
    """The language and content of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


# --- generated -----------------------------------------------------------------------------------


def test_the_commands_pages_are_up_to_date() -> None:
    done = run_script("scripts/make_docs.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["docs/commands.md", "docs/commands.zh.md"])
def test_every_command_and_option_is_on_the_page(page: str) -> None:
    """Asked of the command itself, as a user would."""
    text = read(page)
    for verb in [v for v in VERBS if v != "fleet"] + [f"fleet {sub}" for sub in SUB_COMMANDS]:
        assert f"## workhorse {verb}\n" in text
        section = text.split(f"## workhorse {verb}\n")[1].split("\n## ")[0]
        help_text = run_script("-m", "workhorse", *verb.split(), "--help").stdout
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", help_text)) - {"--help"}
        assert options, verb
        assert {option for option in options if option not in section} == set()


@pytest.mark.parametrize("page", ["docs/commands.md", "docs/commands.zh.md"])
def test_every_environment_variable_is_on_the_page(page: str) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\bWORKHORSE_[A-Z]+\b", code))
    assert named
    assert {name for name in named if f"`{name}`" not in read(page)} == set()


# --- links and names -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [t.partition("#")[0] for t in targets if not t.startswith(("http", "#"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_architecture_fits_on_one_page() -> None:
    assert len(read("ARCHITECTURE.md").splitlines()) <= 100


def test_architecture_names_every_room() -> None:
    text = read("ARCHITECTURE.md")
    source = ROOT / "src/workhorse"
    folders = {f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    assert {"plan/", "cli/"} <= folders
    assert {name for name in folders | modules if name not in text} == set()


def test_the_page_of_benchmarks_names_each() -> None:
    page = read("benchmarks/README.md")
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert "soak.py" in scripts
    assert {name for name in scripts if f"`{name}" not in page} == set()


def test_architecture_names_no_file_that_is_gone() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|toml))`", read("ARCHITECTURE.md")))
    files = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.*") if ".venv" not in p.parts}
    gone = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    assert named
    assert gone == set()


def test_every_dependency_says_why_it_is_there() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    names = [re.split(r"[<>=~ ]", line, maxsplit=1)[0] for line in project["dependencies"]]
    table = read("ARCHITECTURE.md").split("## Dependencies")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE) == sorted(names)


def test_the_changelog_has_this_version() -> None:
    assert f"## [{__version__}]" in read("CHANGELOG.md")


# --- README --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READMES)
def test_the_readme_opens_with_the_two_commands(name: str) -> None:
    """One sentence, the measured table, then the commands: nothing before them."""
    text = read(name)
    assert code_blocks(text)[0] == ("sh", "make up\nmake test\n")
    opening = text.split("```")[0]
    assert opening.count("<!-- measured:begin -->") == opening.count("<!-- measured:end -->") == 1
    assert len(opening.split("<!-- measured:begin -->")[0].strip().splitlines()) == 3


def test_the_two_readmes_show_the_same() -> None:
    english, chinese = (read(name) for name in READMES)
    assert code_blocks(english) == code_blocks(chinese)
    assert english.count("\n## ") == chinese.count("\n## ")
    assert english.count("\n|") == chinese.count("\n|")


def measured(name: str) -> list[str]:
    block = read(name).split("<!-- measured:begin -->")[1].split("<!-- measured:end -->")[0]
    return re.findall(r"\d+(?:\.\d+)?", block)


def test_the_two_readmes_report_the_same_figures() -> None:
    assert measured("README.md") == measured("README.zh.md")


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md"])
def test_every_command_line_can_be_typed(name: str) -> None:
    """Make targets, scripts and verbs in the code blocks exist."""
    targets = set(re.findall(r"^([a-z]+):.*## ", read("Makefile"), flags=re.MULTILINE))
    assert {"up", "test", "check"} <= targets
    for language, block in code_blocks(read(name)):
        for line in block.splitlines() if language == "sh" else ():
            words = line.split()
            if words[0] == "make":
                assert words[1] in targets, line
            elif words[0] == "sh":
                assert (ROOT / words[1]).is_file(), line
            elif words[0] == "workhorse":
                assert words[1] in VERBS, line


@pytest.mark.skipif(shutil.which("make") is None, reason="`sh scripts/test` needs no make")
def test_make_prints_its_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^  make (\w+) +\S", done.stdout, flags=re.MULTILINE) == re.findall(
        r"^([a-z]+):.*## ", read("Makefile"), flags=re.MULTILINE
    )


@pytest.fixture(scope="module")
def service(real_model: Path) -> Iterator[str]:
    """`workhorse up` with the real engine and model; its address without `/v1`."""
    command = [sys.executable, "-m", "workhorse", "up", str(real_model)]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-measure", "--json"], stdout=subprocess.PIPE, text=True
    ) as up:
        try:
            yield address(up)
        finally:
            up.terminate()
            up.communicate(timeout=300)
    assert up.returncode == 0


def address(up: "subprocess.Popen[str]") -> str:
    """What `up --json` says when the service answers."""
    assert up.stdout is not None
    document = ""
    for line in up.stdout:
        document += line
        try:
            said = json.loads(document)
        except ValueError:
            continue  # the document goes on
        document = ""
        if "url" in said:
            return str(said["url"]).removesuffix("/v1")
    raise AssertionError("it ended before it was ready")


@pytest.mark.real
@pytest.mark.parametrize("call", ["curl", "python"])
def test_the_readmes_calls_get_an_answer(service: str, call: str) -> None:
    (block,) = [
        content
        for _, content in code_blocks(read("README.md"))
        if content.startswith(("curl ", "from openai ")) and (call == "curl") == ("curl" in content)
    ]
    script = block.replace("http://127.0.0.1:8080", service)
    assert script != block
    command = ["sh", "-c", script] if call == "curl" else [sys.executable, "-c", script]
    if call == "curl" and shutil.which("curl") is None:
        pytest.skip("no curl here")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = (
        json.loads(done.stdout)["choices"][0]["message"]["content"]
        if call == "curl"
        else (done.stdout)
    )
    assert len(said.split()) >= 3
