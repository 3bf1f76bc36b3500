"""The table of troubles: complete, searchable, and consistent in itself."""

import re

import pytest

from workhorse.diagnose.anchors import SHORTEST, anchors
from workhorse.diagnose.facts import NAMES, TELLING, applies, facts_of_log, with_conclusions
from workhorse.diagnose.judge import diagnose_lines, scan
from workhorse.knowledge.diagnoses import FactRule, Trouble, troubles

KNOWN = {trouble.code: trouble for trouble in troubles()}
EXPRESSIONS = [(t.code, e) for t in troubles() for e in (*t.lines, *t.near, *t.never)]


def test_codes_are_unique() -> None:
    assert len(KNOWN) == len(troubles())


@pytest.mark.parametrize("trouble", troubles(), ids=lambda trouble: trouble.code)
def test_a_row_is_complete(trouble: Trouble) -> None:
    assert re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", trouble.code)
    assert 0 < trouble.sure < 1
    assert trouble.lines or trouble.code.startswith("behaviour.")
    assert trouble.source
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", trouble.date)
    for english in (trouble.en, trouble.en_step, trouble.en_check):
        assert english
        assert not re.search(r"[\u4e00-\u9fff]", english)
    for chinese in (trouble.zh, trouble.zh_step, trouble.zh_check):
        assert re.search(r"[\u4e00-\u9fff]", chinese)
    assert trouble.code not in trouble.explains
    assert set(trouble.explains) <= set(KNOWN)
    assert len(set(trouble.explains)) == len(trouble.explains)
    assert not trouble.needs_near or trouble.near
    for rule in trouble.facts:
        assert rule.fact in NAMES
        assert applies(rule, {rule.fact: frozenset({"1"})}) in (True, False)


def test_every_expression_has_a_literal_that_finds_its_line() -> None:
    for code, expression in [*EXPRESSIONS, *(("facts", e) for e in TELLING)]:
        re.compile(expression, re.IGNORECASE)
        assert anchors(expression), (code, expression)
        assert all(len(literal.encode()) >= SHORTEST for literal in anchors(expression))


def test_generic_ends_are_less_sure_than_causes() -> None:
    for trouble in troubles():
        assert not trouble.generic or trouble.sure < 0.7


def test_an_end_without_a_reason_follows_from_the_cause() -> None:
    verdict = diagnose_lines(
        ["CUDA error: no kernel image is available for execution", "Aborted (core dumped)"],
        {"capability": frozenset({"7.0"}), "built_for": frozenset({"7.5"})},
    )
    (finding,) = verdict.findings
    assert finding.code == "engine.no_kernel_image"
    assert KNOWN["process.aborted"].en in [text.en for text in finding.consequences]


@pytest.mark.parametrize(
    ("card", "built", "answer"),
    [
        ("7.0", ["7.5", "8.0"], "no"),
        ("7.0", ["5.0", "7.0"], "yes"),
        ("6.1", ["6.0", "7.0"], "yes"),
        ("6.1", ["7.5"], "no"),
        ("9.0", ["7.0"], None),
    ],
)
def test_whether_a_build_has_code_for_a_card(
    card: str, built: list[str], answer: str | None
) -> None:
    facts = {"capability": frozenset({card}), "built_for": frozenset(built)}
    told = with_conclusions(facts).get("code_for_card")
    assert told == (None if answer is None else frozenset({answer}))


def test_the_same_line_on_another_card_is_something_else() -> None:
    line = ["CUDA error: no kernel image is available for execution on the device"]
    volta = diagnose_lines(
        line, {"capability": frozenset({"7.0"}), "built_for": frozenset({"7.5", "8.0"})}
    ).findings[0]
    assert (volta.code, volta.sure) == ("engine.no_kernel_image", "certain")
    hopper = diagnose_lines(line, {"capability": frozenset({"9.0"})}).findings[0]
    assert hopper.code == "cuda.build_older_than_card"


def test_cards_whose_names_differ_in_digits_alone_are_two() -> None:
    scanner = scan(
        [
            b"  Device 0: Tesla P40, compute capability 6.1, VMM: yes\n"
            b"  Device 1: Tesla P100-PCIE-16GB, compute capability 6.0, VMM: yes\n"
            b"  Device 2: Tesla P40, compute capability 6.1, VMM: yes\n"
        ]
    )
    assert facts_of_log(scanner)["capability"] == {"6.0", "6.1"}


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ("| CUDA : ARCHS = 500,610,1200 |", "built_for", {"5.0", "6.1", "12.0"}),
        ("supports CUDA capabilities sm_75 sm_80 sm_120.", "built_for", {"7.5", "8.0", "12.0"}),
        ("min sm: 86", "built_for", {"8.6"}),
        ("Current capability: 70.", "capability", {"7.0"}),
        ("NVIDIA-SMI 580.1  Driver Version: 535.183.01  CUDA", "driver", {"535.183.01"}),
        ("Xeon(R) CPU E5-2690 v2 @ 3.00GHz", "avx2", {"false"}),
        ("Model name: Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "avx2", {"true"}),
        ("iommu: Default domain type: Translated", "iommu", {"translating"}),
        ("max locked memory           (kbytes, -l) 8192", "memlock_mib", {"8"}),
        ("[TM][INFO] turbomind is used", "engine", {"lmdeploy"}),
        ("NUMA node(s):   2", "nodes", {"2"}),
    ],
)  # fmt: skip
def test_what_a_line_tells_of_the_machine(line: str, fact: str, value: set[str]) -> None:
    assert facts_of_log(scan([line.encode()]))[fact] == value


def test_threads_beyond_one_node_are_seen_where_the_machine_is_known() -> None:
    line = "system_info: n_threads = 28 (n_threads_batch = 28) / 56 | CPU : AVX2 = 1"
    two = {"nodes": frozenset({"2"}), "node_cores": frozenset({"14"})}
    (finding,) = diagnose_lines([line], two).findings
    assert finding.code == "placement.threads_over_cores_of_node"
    assert diagnose_lines([line]).findings == ()
    one = {"nodes": frozenset({"1"}), "node_cores": frozenset({"28"})}
    assert diagnose_lines([line], one).findings == ()
    on_the_card = "load_tensors: offloaded 33/33 layers to GPU"
    assert diagnose_lines([line, on_the_card], two).findings == ()


def test_what_an_earlier_run_said_is_no_sign() -> None:
    first = ["srv  llama_server: initializing ...", "srv update_slots: all slots are idle"]
    second = [
        "srv  llama_server: initializing ...",
        "load_model: loading draft model '/models/d.gguf'",
        "allocating 448.00 MiB on device 0: cudaMalloc failed: out of memory",
    ]
    assert diagnose_lines([*first, *second]).findings[0].code == "memory.draft_not_counted"


def test_a_rule_of_an_unknown_fact_says_nothing() -> None:
    assert applies(FactRule("capability", "<8.0", "certain"), {}) is None
    with pytest.raises(ValueError, match="comparison"):
        applies(FactRule("capability", "about 8", "certain"), {"capability": frozenset({"8.0"})})
