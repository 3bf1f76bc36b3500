"""The `workhorse` command: a table of verbs, one file a verb, loaded when it is called."""

import argparse
import sys
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType

from workhorse import __version__
from workhorse.cli.parser import Parser
from workhorse.cli.show import choose_language, print_error
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, AppError
from workhorse.text import Language, Text

VERBS: dict[str, Text] = {
    "up": Text(
        "turn this machine into a verified LLM service on loopback",
        "把本机变成经过验证的本地大模型服务",
    ),
    "status": Text(
        "show how the running service is, also as an exit code", "查看运行中服务的状态（含退出码）"
    ),
    "reload": Text(
        "bring other settings or another engine into a running service, without refusing a request",
        "让运行中的服务换用新配置或新引擎，不拒绝任何请求",
    ),
    "service": Text(
        "have systemd start the service with the machine and watch over it",
        "交由 systemd 随系统启动并守护服务",
    ),
    "fleet": Text(
        "several machines as one service: the head, its nodes, what runs on them",
        "把多台机器组成一个服务：主节点、节点与其上的副本",
    ),
    "probe": Text("show what this machine is and can do", "查看本机的硬件与能力"),
    "doctor": Text(
        "say what is wrong with this machine, what it costs and what to do",
        "诊断本机的问题、代价与对策",
    ),
    "plan": Text("decide how a model would run here, before anything starts", "启动前先定方案"),
    "pull": Text(
        "bring a model here, whole and checked, in the quant that suits this machine",
        "下载模型：自动选择适合本机的量化，断点续传并核对校验值",
    ),
    "rehearse": Text(
        "measure how fast a model will be here, before its weights are downloaded",
        "下载权重之前，先在本机测出模型的速度",
    ),
    "convert": Text(
        "turn a BF16 model into FP16 for cards without BF16, safely",
        "将 BF16 模型安全地转换为 FP16，供不支持 BF16 的显卡使用",
    ),
    "quantize": Text(
        "make a GGUF file smaller, weighted by what matters, and measure what it lost",
        "量化 GGUF 文件：按重要性加权，并测量质量损失",
    ),
    "diagnose": Text(
        "find the cause of a failure in a log, and the fix", "从日志找出故障原因与解决办法"
    ),
    "batch": Text(
        "thousands of documents into summaries, tables, translations: resumable, at night if asked",
        "批量处理成千上万篇文档：摘要、抽取、翻译等；可断点续做，可只在夜间运行",
    ),
    "templates": Text(
        "show what batch jobs can do with documents, and write templates of your own",
        "查看批处理模板，编写自己的模板",
    ),
    "tune": Text(
        "find the settings that are fastest here, by trying them one at a time",
        "逐项试验，找出本机最快的设置",
    ),
    "bench": Text("measure a running service", "测量正在运行的服务"),
    "explain": Text(
        "show where the time of a token goes, from the memory's ceiling to what was measured",
        "查看每个 token 的时间花在哪里：从内存上限到实测速度",
    ),
    "report": Text(
        "compare measured runs: tables and plots in one HTML file, or Markdown",
        "对比多次测量：表格与图表，输出单个 HTML 文件或 Markdown",
    ),
    "keys": Text("make, list and revoke the keys of the service", "创建、列出和吊销服务的密钥"),
    "usage": Text(
        "show what each key used: requests, tokens, time", "查看各密钥的用量：请求、token、时间"
    ),
    "engine": Text(
        "make, install, check and remove engine builds",
        "构建、安装、验证和删除推理引擎",
    ),
    "bundle": Text(
        "all that a machine without a network needs: make it, check it, install it",
        "离线包：为无网络的机器制作、核对并安装全部所需内容",
    ),
    "host": Text(
        "show the host's settings, change them, and bring the originals back",
        "查看、更改并恢复本机的系统设置",
    ),
}
ABOUT = Text(
    "Puts an idle old server back to work as a private LLM service.",
    "让闲置的旧服务器重新上岗，成为私有的大模型服务。",
)


def verb_module(verb: str) -> ModuleType:
    """The module of a verb, with `add_arguments(parser, language)` and `run(args) -> int`."""
    return import_module(f"workhorse.cli.{verb}")


def build_parser(language: Language, only: str | None = None) -> argparse.ArgumentParser:
    """The command's parser; `only` names the one verb whose module is loaded, None: all."""
    parser = Parser(prog="workhorse", description=ABOUT.in_language(language), language=language)
    parser.add_argument("--version", action="version", version=f"workhorse {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for verb, about in VERBS.items():
        words = about.in_language(language)
        verb_parser = verbs.add_parser(verb, help=words, description=words, language=language)
        if only in (None, verb):
            add_common(verb_parser, language)
            verb_module(verb).add_arguments(verb_parser, language)
    return parser


def add_common(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options that every verb has."""
    parser.add_argument(
        "--json",
        action="store_true",
        help=Text("print one JSON document instead of a table", "输出 JSON").in_language(language),
    )
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        default=language,
        help=Text("language of the output", "输出语言").in_language(language),
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code (see `errors`)."""
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character shows `?`
            stream.reconfigure(errors="replace")
    language = choose_language(arguments)
    verb = next((word for word in arguments if word in VERBS), "")
    args = build_parser(language, only=verb).parse_args(arguments)
    try:
        return int(verb_module(args.verb).run(args))
    except AppError as error:
        print_error(error, language)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to say to it.
        sys.stderr.close()
        return EXIT_GOOD
