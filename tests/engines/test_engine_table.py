"""The table of engines and cards: every cell rests on something that can be looked up."""

from workhorse.engines.adapter import adapters
from workhorse.engines.engine_table import TRIED_ON_A_CPU, sources_of, table


def test_every_cell_names_where_it_comes_from() -> None:
    found = table()
    known = set(sources_of(found))
    for row in found:
        assert len(row.cells) == len(adapters())
        for cell in row.cells:
            assert cell.sources
            unknown = set(cell.sources) - known - set(TRIED_ON_A_CPU.values())
            assert unknown <= {"recipes.toml", "adapter of LMDeploy"}, (row.hardware.en, cell)


def test_volta_is_served_by_each_in_its_own_way() -> None:
    (volta,) = [row for row in table() if row.hardware.en == "Volta (7.0)"]
    words = dict(zip([a.engine for a in adapters()], volta.cells, strict=True))
    assert words["llama.cpp"].verdict == "yes"
    assert words["lmdeploy"].verdict == "yes"
    assert words["vllm"].verdict == "slower"
    assert "no tensor cores" in words["vllm"].words.en
