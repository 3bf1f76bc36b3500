"""The forecast of a split against what owners of several cards published."""

import runpy
from pathlib import Path
from statistics import median

from workhorse.knowledge.links import exchanges, nvlinks, pcie_paths
from workhorse.knowledge.published_speeds import shapes
from workhorse.knowledge.several_speeds import several_speeds

ROWS = several_speeds()
# What prints the table of docs/measured/ is what is held to here.
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "several_rows.py"))
card_of_row, row_seconds = SCRIPT["card_of_row"], SCRIPT["row_seconds"]


def test_every_row_names_its_cards_shape_and_source() -> None:
    for row in ROWS:
        assert all(card_of_row(name).bandwidth_gb_per_s for name in row.cards)
        assert row.model in shapes() and row.source and row.date
        assert len(row.parts) == len(row.cards) and abs(sum(row.parts) - 1) < 1e-9


def test_every_published_row_is_met_within_a_quarter() -> None:
    misses = [abs(1 / row_seconds(row) / row.tokens_per_s - 1) for row in ROWS if row.note is None]
    assert len(misses) >= 12
    assert max(misses) <= 0.25 and median(misses) <= 0.15


def test_what_tensors_gain_over_layers_is_met() -> None:
    """The same cards and file, both ways: the ratio does not hang on how fast the card is."""
    pairs = [
        (layer, tensor)
        for layer in ROWS
        for tensor in ROWS
        if (layer.cards, layer.quant) == (tensor.cards, tensor.quant)
        and (layer.split, tensor.split) == ("layer", "tensor")
    ]
    assert len(pairs) >= 2
    for layer, tensor in pairs:
        seen = tensor.tokens_per_s / layer.tokens_per_s
        assert abs(row_seconds(layer) / row_seconds(tensor) / seen - 1) <= 0.1


def test_every_link_says_where_it_comes_from() -> None:
    for row in (*nvlinks(), *pcie_paths().values(), *exchanges().values()):
        assert row.source and row.date
    assert list(pcie_paths()) == ["PIX", "PXB", "PHB", "NODE", "SYS"]
