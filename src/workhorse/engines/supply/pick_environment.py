"""The environments as engines to choose from: installed ones, and those that the user has."""

import os
from pathlib import Path

from workhorse.engines.choose_engine import Contender
from workhorse.engines.supply.asked import ask
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.environment import Environment, build_of, installed, read_environment
from workhorse.errors import EXIT_NO, AppError
from workhorse.knowledge.engine_environments import CPU
from workhorse.records import EngineBuild, EngineName
from workhorse.text import Text

# Any card, for an environment of which only its own PyTorch is known.
ANY_CARD = ">=3.0,<20.0"
MODULES: dict[str, str] = {
    "vllm": "vllm.entrypoints.openai.api_server",
    "lmdeploy": "lmdeploy",
}


def contenders(builds: Builds, engine: EngineName | None = None) -> list[Contender]:
    """Every installed environment, or those of one engine."""
    return [
        Contender(one.name, build_of(builds.folder / one.name, one))
        for one in installed(builds)
        if engine is None or one.engine == engine
    ]


def named_environment(word: Path, builds: Builds) -> Contender | None:
    """The installed environment of this name, or the environment at this path; None: neither.

    AppError for a folder with a Python in it that has neither engine.
    """
    name = str(word)
    if os.sep not in name:
        record = read_environment(builds.folder / name)
        return None if record is None else Contender(name, build_of(builds.folder / name, record))
    home = word.expanduser().absolute()
    if not (home / "bin" / "python").exists():
        return None
    return Contender(str(home), outside_build(home))


def outside_build(home: Path) -> EngineBuild:
    """An environment that the user made, a fork's for one, asked what it is (some 20 s)."""
    failure: AppError | None = None
    for engine, module in MODULES.items():
        try:
            asked = ask(home, engine, module)
        except AppError as error:
            failure = failure or error
            continue
        target = ANY_CARD if asked.architectures else CPU
        record = Environment(
            name=home.name,
            engine=engine,  # type: ignore[arg-type]
            target=target,
            module=module,
            python="",
            asked=asked,
            installed_at="",
        )
        return build_of(home, record)
    cause = failure.what if failure else Text("nothing found", "未找到")
    raise AppError(
        Text(
            f"{home} has neither vLLM nor LMDeploy: {cause.en}",
            f"{home} 中既没有 vLLM 也没有 LMDeploy：{cause.zh}",
        ),
        Text(
            "Name an environment that has one, or: workhorse engine install vllm",
            "请指定含有引擎的环境，或执行：workhorse engine install vllm",
        ),
    )


def none_installed(engine: str) -> AppError:
    """The engine that was asked for is not here."""
    return AppError(
        Text(f"{engine} is not installed.", f"未安装 {engine}。"),
        Text(
            f"Install it: workhorse engine install {engine}",
            f"请安装：workhorse engine install {engine}",
        ),
        exit_code=EXIT_NO,
    )
