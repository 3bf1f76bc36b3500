"""Whether the engines on a machine run on its cards: by their machine code, else by the rules."""

from collections.abc import Sequence

from workhorse.doctor.card_kinds import CardKind
from workhorse.doctor.gpu_code import GpuCode, code_for
from workhorse.doctor.rule_words import SOFTWARE, rule_finding, symptom_after, uses_finding
from workhorse.knowledge.compat import Facts, Rule, rules
from workhorse.knowledge.gpus import Capability
from workhorse.knowledge.versions import version
from workhorse.records import EngineFound, Finding, Model
from workhorse.text import Text, same

_CUDA_GUIDE = "CUDA C++ programming guide, binary and PTX compatibility, 2026-11"
_NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
# What only a given model tells; a rule that lacks nothing else is told as a use of the engine.
_OF_MODEL = frozenset({"weights", "model"})
_OF_CARD = _OF_MODEL | {"capability"}


def engine_findings(
    engines: Sequence[EngineFound],
    facts: Facts,
    kinds: Sequence[CardKind],
    model: Model | None,
) -> list[Finding]:
    """Each engine against each kind of card, and what of it does not run there.

    Where no llama.cpp was found its uses are told all the same: it is what workhorse runs.
    """
    found: list[Finding] = []
    for engine in engines:
        about = same(f"{_name(engine)} ({engine.path})")
        of_engine = {**facts, **_version_facts(engine)}
        found += _anywhere(engine.name, of_engine, about)
        for kind in kinds:
            if kind.capability is not None and kind.generation is not None:
                found += _on_card(engine, kind, kind.capability, of_engine, about, model)
    if not any(engine.name == "llama.cpp" for engine in engines):
        for kind in kinds:
            if kind.generation is not None:
                here = {**kind.facts(facts), "software": "llama.cpp"}
                found += _uses("llama.cpp", here, [kind.label, same("llama.cpp")], model)
    return found


def _name(engine: EngineFound) -> str:
    name = SOFTWARE[engine.name]
    return f"{name} {engine.version}" if engine.version else name


def _version_facts(engine: EngineFound) -> dict[str, str]:
    told: dict[str, str] = {"software": engine.name}
    if engine.version:
        told["version"] = engine.version
        if engine.name == "pytorch":
            told["build"] = _build(engine.version)
    return told


def _build(wheel_version: str) -> str:
    """The tag of a PyTorch wheel, `cu126` in `2.11.0+cu126`; those without are `default`."""
    return wheel_version.partition("+")[2] or "default"


def _anywhere(software: str, facts: Facts, about: Text) -> list[Finding]:
    """What needs no card to be told: the C library, the CPU, the driver."""
    found = [
        rule_finding(rule, facts, [about])
        for rule in _rules_of(software)
        if rule.use is None and rule.applies(facts)
    ]
    uses = [rule for rule in _rules_of(software) if rule.use and rule.applies(facts)]
    return found + ([uses_finding(software, uses, [about], facts)] if uses else [])


def _on_card(
    engine: EngineFound,
    kind: CardKind,
    capability: Capability,
    facts: Facts,
    about: Text,
    model: Model | None,
) -> list[Finding]:
    here = kind.facts(facts)
    subjects = [kind.label, about]
    if _without_gpu_code(engine, here):
        return [_cpu_only(subjects)]
    code = code_for(capability, engine.sass, engine.ptx)
    # Who has seen the machine code needs no rule about it.
    met = [
        rule
        for rule in _rules_of(engine.name)
        if rule.use is None
        and "capability" in rule.when
        and not (rule.about_code and code)
        and rule.applies(here)
    ]
    found = [rule_finding(rule, here, subjects) for rule in met]
    # Code for the card is no good news where the engine refuses the card itself.
    refused = code is not None and code.kind != "none" and any(r.effect == "fails" for r in met)
    if code is not None and not refused:
        found.append(_code_finding(code, engine, capability, subjects))
    elif not met:
        found.append(_unknown(engine, subjects))
    if not any(finding.share_lost == 1.0 for finding in found):
        found += _uses(engine.name, here, subjects, model)
    return found


def _without_gpu_code(engine: EngineFound, facts: Facts) -> bool:
    return (engine.sass == () and engine.ptx == ()) or facts.get("build") == "cpu"


def _uses(software: str, facts: Facts, about: Sequence[Text], model: Model | None) -> list[Finding]:
    """The rules about one use: of this model each by itself, the others together in one note."""
    told = {**facts, **_model_facts(software, model)}
    of_model, others = [], []
    for rule in _rules_of(software):
        if rule.use is None or not rule.when.keys() & _OF_CARD:
            continue
        applies = rule.applies(told)
        if applies and _OF_MODEL & rule.when.keys():
            of_model.append(rule_finding(rule, told, about))
        elif applies or (applies is None and rule.unknown(told) <= _OF_MODEL):
            others.append(rule)
    return of_model + ([uses_finding(software, others, about, told)] if others else [])


def _model_facts(software: str, model: Model | None) -> dict[str, str]:
    """What llama.cpp would read; other engines do not take the same file."""
    if model is None or software != "llama.cpp":
        return {}
    plain = model.quantisation in ("f16", "bf16", "f32")
    return {
        "weights": model.quantisation if plain else "quantised",
        "model": model.architecture,
    }


def _rules_of(software: str) -> list[Rule]:
    return [rule for rule in rules() if rule.when.get("software") == software]


def _code_finding(
    code: GpuCode, engine: EngineFound, capability: Capability, about: Sequence[Text]
) -> Finding:
    subjects = Text(", ".join(s.en for s in about), "，".join(s.zh for s in about))
    held = (*(engine.sass or ()), *(engine.ptx or ()))
    number = "".join(str(part) for part in capability)
    match code.kind:
        case "none":
            return _no_code(subjects, held, number)
        case "ptx":
            return _ptx_only(code, subjects, held, number)
        case "exact" | "same major":
            return Finding(
                code="engine.code",
                level="good",
                seen=Text(
                    f"{subjects.en}: has code for this card ({code.which}).",
                    f"{subjects.zh}：含有适用于该卡的代码（{code.which}）。",
                ),
                why=Text("It starts without compiling.", "启动时无需编译。"),
                remedy=Text("Nothing to do.", "无需操作。"),
                source=_CUDA_GUIDE,
                evidence=held,
            )


def _no_code(subjects: Text, held: tuple[str, ...], number: str) -> Finding:
    symptom = f"{_NO_IMAGE}; ggml was not compiled with any CUDA arch <= {number}0"
    return Finding(
        code="engine.no-code",
        level="warning",
        seen=Text(
            f"{subjects.en}: no code for this card.",
            f"{subjects.zh}：没有适用于该卡的代码。",
        ),
        why=symptom_after(
            Text("It holds code for other cards only.", "它只含其他显卡的代码。"), symptom
        ),
        remedy=Text(
            "Take the version of this card's recipe, or build it for the card.",
            "请改用该卡推荐方案中的版本，或为该卡编译。",
        ),
        source=_CUDA_GUIDE,
        evidence=held,
        share_lost=1.0,
    )


def _ptx_only(code: GpuCode, subjects: Text, held: tuple[str, ...], number: str) -> Finding:
    return Finding(
        code="engine.ptx-only",
        level="warning",
        seen=Text(
            f"{subjects.en}: only PTX for this card ({code.which}), no machine code.",
            f"{subjects.zh}：对该卡只含 PTX（{code.which}），没有机器码。",
        ),
        why=symptom_after(
            Text(
                "The driver compiles it at the first start, which takes minutes; a driver older"
                " than the toolkit that made it refuses it. What was written for newer cards than"
                " the PTX stays unused: llama.cpp's tensor cores on Volta need exactly sm_70.",
                "驱动会在首次启动时编译，需要数分钟；若驱动比生成它的工具包旧则会拒绝。"
                "为比该 PTX 更新的显卡编写的功能不会启用："
                "llama.cpp 要用 Volta 的张量核心必须恰好按 sm_70 编译。",
            ),
            "the provided PTX was compiled with an unsupported toolchain",
        ),
        remedy=Text(
            f"Build it with CMAKE_CUDA_ARCHITECTURES={number}-real; until then wait for the first"
            " start and keep the compiled code (CUDA_CACHE_MAXSIZE=4294967296).",
            f"请用 CMAKE_CUDA_ARCHITECTURES={number}-real 编译；在此之前请耐心等待首次启动，"
            "并保留编译结果（CUDA_CACHE_MAXSIZE=4294967296）。",
        ),
        source=f"{_CUDA_GUIDE}; 75 s measured for llama.cpp, 2026-11",
        evidence=held,
    )


def _cpu_only(about: Sequence[Text]) -> Finding:
    return Finding(
        code="engine.cpu-only",
        level="note",
        seen=Text(
            f"{', '.join(s.en for s in about)}: a build without GPU code.",
            f"{'，'.join(s.zh for s in about)}：不含显卡代码的版本。",
        ),
        why=Text("It leaves the card idle.", "它不会使用显卡。"),
        remedy=Text("Use another engine for the card.", "请为该卡使用其他引擎。"),
        source=_CUDA_GUIDE,
    )


def _unknown(engine: EngineFound, about: Sequence[Text]) -> Finding:
    readable = engine.version is not None and version(engine.version) is not None
    lacking = (
        Text("No rule covers this version on this card", "没有规则涵盖该版本与该卡的组合")
        if readable
        else Text("Its version is not known", "不知道它的版本")
    )
    return Finding(
        code="engine.unknown",
        level="note",
        seen=Text(
            f"{', '.join(s.en for s in about)}: not known whether it runs.",
            f"{'，'.join(s.zh for s in about)}：不知道能否运行。",
        ),
        why=Text(
            f"{lacking.en}, and its machine code was not read.",
            f"{lacking.zh}，也未能读取其机器码。",
        ),
        remedy=Text(
            "Try it with a small model, and report version and card with what this command writes.",
            "请先用小模型试跑，并把版本、显卡和此命令生成的内容反馈给我们。",
        ),
        source="workhorse knowledge/compat/, 2026-11",
        command="workhorse probe --save capture",
        evidence=tuple(part for part in (engine.version, engine.path) if part),
    )
