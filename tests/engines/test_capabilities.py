"""Each version of llama-server is told what we mean in its own words, and nothing it lacks.

The lists in helps/ are of four real versions; where each comes from stands at its top.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import builders
from workhorse.engines.capabilities import Capabilities, Option, capabilities, read_help
from workhorse.engines.find import embedded_build
from workhorse.engines.llamacpp import launch
from workhorse.knowledge.llamacpp_flags import forms, spell
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish

HELPS = Path(__file__).parent / "helps"
VERSIONS = sorted(path.stem for path in HELPS.glob("*.txt"))
OLD = ["006167dd", "53dd4beb", "25d5b0c5"]
NEW = "0.5.0-0c1e57098"


def options_of(version: str) -> list[Option]:
    return read_help((HELPS / f"{version}.txt").read_text("utf-8"))


def build_of(version: str) -> Capabilities:
    return capabilities(options_of(version))


def argv_of(version: str, **changes: object) -> list[str]:
    understood = build_of(version)
    engine = replace(
        builders.EMBEDDED, command=("E",), knows=understood.knows, forms=understood.forms
    )
    plan = make_plan(builders.machine(), builders.model(), engine, Wish())
    return list(launch(replace(plan, **changes), 4711).argv[1:])  # type: ignore[arg-type]


def test_the_versions_are_there() -> None:
    assert sorted([*OLD, NEW]) == VERSIONS
    assert len(options_of(NEW)) > 240


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_line_is_one_that_this_version_reads(version: str) -> None:
    """Each word is an option of that version or the value of one that takes a value."""
    takes = {flag: option.takes for option in options_of(version) for flag in option.flags}
    words = argv_of(version)
    at = 0
    while at < len(words):
        assert words[at] in takes, words[at]
        at += 1 if takes[words[at]] is None else 2
    assert at == len(words)
    assert {"--model", "--port", "--ctx-size", "--parallel", "--threads", "--metrics"} <= set(words)


@pytest.mark.parametrize("version", OLD)
def test_an_old_version(version: str) -> None:
    words = argv_of(version, load_mode="none", flash_attention=True)
    assert "--no-mmap" in words and "--load-mode" not in words
    # A value after a flag that takes none would end the server with usage.
    assert words[words.index("--flash-attn") + 1 :][:1] != ["on"]
    # Four was debug output for each token, before levels had names.
    assert "--verbosity" not in words
    assert not {"--fit", "--cache-ram", "--cors-origins"} & set(words)


@pytest.mark.parametrize("version", OLD)
def test_what_an_old_version_does_by_itself_is_not_said(version: str) -> None:
    words = argv_of(version, load_mode="mmap", flash_attention=False)
    assert not {"--no-mmap", "--mlock", "--flash-attn"} & set(words)
    assert "--mlock" in argv_of(version, load_mode="mlock")


def test_the_new_version() -> None:
    words = argv_of(NEW, load_mode="none", flash_attention=False)
    pairs = dict(pairwise(words))
    assert (pairs["--load-mode"], pairs["--flash-attn"], pairs["--fit"]) == ("none", "off", "off")
    assert (pairs["--verbosity"], pairs["--cors-origins"]) == ("4", "")
    assert "--no-ui" in words and "--no-webui" not in words


def test_an_option_that_only_says_it_was_removed_is_not_known() -> None:
    assert "--draft-max" in (HELPS / f"{NEW}.txt").read_text("utf-8")
    assert "--draft-max" not in build_of(NEW).knows
    assert "--draft-max" in build_of("25d5b0c5").knows


@pytest.mark.parametrize(
    ("version", "setting", "value", "words"),
    [
        ("25d5b0c5", "draft tokens", "8", ("--draft-max", "8")),
        (NEW, "draft tokens", "8", ("--spec-draft-n-max", "8")),
        ("25d5b0c5", "draft kind", "draft-simple", ()),
        (NEW, "draft kind", "draft-simple", ("--spec-type", "draft-simple")),
        ("25d5b0c5", "draft kind", "ngram-simple", None),
        ("006167dd", "draft tokens", "8", None),
        ("006167dd", "shared KV", "on", None),
        ("25d5b0c5", "shared KV", "on", ("--kv-unified",)),
        (NEW, "shared KV", "off", ("--no-kv-unified",)),
        ("53dd4beb", "web page", "off", ("--no-webui",)),
        ("006167dd", "web page", "off", ()),
    ],
)
def test_how_a_setting_is_said(
    version: str, setting: str, value: str, words: tuple[str, ...] | None
) -> None:
    understood = build_of(version)
    assert spell(setting, value, understood.knows, understood.forms) == words


def test_the_embedded_engine_takes_everything_as_the_new_version_does() -> None:
    build = embedded_build()
    known = {form.name for form in forms() if form.flag in build.knows}
    assert set(build.forms) == known and len(known) > 1


def test_a_help_text_is_read_line_by_line() -> None:
    said = (
        "----- common params -----\n"
        "-fa,   --flash-attn [on|off|auto]       set it\n"
        "                                        (default: 'auto')\n"
        "-fitt, --fit-target MiB0,MiB1,...\n"
        "                                        target, see --no-mmap\n"
        "--old N                                 the argument has been removed. use --new\n"
    )
    first, second = read_help(said)
    assert first == Option(("-fa", "--flash-attn"), "[on|off|auto]", "set it (default: 'auto')")
    assert second.flags == ("-fitt", "--fit-target")
    assert capabilities([first, second]).knows == ("--fit-target", "--flash-attn", "-fa", "-fitt")


@pytest.mark.parametrize("text", ["", "\0\0", "-" * 100_000, "-a, " * 50_000, "x\n" * 50_000])
def test_a_help_text_that_is_none(text: str) -> None:
    assert capabilities(read_help(text)).forms == ()
