"""A mistake on the command line is one sentence and one next step, in the reader's language."""

import pytest

from workhorse.cli import main


@pytest.mark.parametrize(
    ("line", "en", "zh"),
    [
        ("", "COMMAND is missing.", "缺少 COMMAND。"),
        ("keys", "action is missing.", "缺少 action。"),
        ("paint", "COMMAND cannot be 'paint'; it is one of ", "COMMAND 不能是 'paint'，可选："),
        ("up --for all", "--for cannot be 'all'", "--for 不能是 'all'"),
        ("status --colour red", "There is no --colour red here.", "没有 --colour red 这样的参数。"),
        ("status --port", "--port needs a value.", "--port 需要一个值。"),
        ("status --port x", "--port cannot be 'x'.", "--port 不能是 'x'。"),
        ("status --port 65536", "--port: 65536 is not a port", "--port：65536 不是端口"),
        ("plan --gpu", "--gpu needs a value.", "--gpu 需要一个值。"),
        ("plan --head 1", "--headroom: 1 is not a share", "--headroom：1 不在 0%"),
        ("keys add a/b", "NAME: 'a/b' is no name", "NAME：'a/b' 不能用作名称"),
        ("usage --since soon", "--since: soon is no time", "--since：soon 不是时间"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_is_told_in_words(
    line: str,
    en: str,
    zh: str,
    language: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKHORSE_LANG", language)
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"workhorse: {en if language == 'en' else zh}")
    assert "--help`" in said[1]
    assert len(said) == 2
