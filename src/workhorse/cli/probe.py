"""`workhorse probe`: show what this machine is and what was measured of it."""

import argparse
import sys
from pathlib import Path

from workhorse.cli.gpu_tables import (
    print_gpu_processes,
    print_gpus,
    print_links,
    print_peer_copies,
)
from workhorse.cli.probe_tables import (
    cpu_rows,
    limit_rows,
    memory_rows,
    print_bandwidths,
    print_facts,
    print_nodes,
)
from workhorse.cli.progress import LateBar
from workhorse.cli.show import console
from workhorse.cli.system_tables import (
    print_disks,
    print_events,
    print_software,
    settings_rows,
    system_rows,
)
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD
from workhorse.records import Machine
from workhorse.text import Language, Text
from workhorse.units import show_bytes

MEASURING = Text("measuring", "测量中")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `probe`."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help=Text(
            "another machine: a capture, a tree with its proc/ and sys/, or the pasted output of"
            " nvidia-smi, lscpu, numactl …; nothing is measured then",
            "另一台机器：采集目录、含 proc/ 和 sys/ 的目录，或 nvidia-smi、lscpu、numactl 等命令的"
            "输出文本；此时不做测量",
        ).in_language(language),
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help=Text(
            "write what was read to a new folder, without personal data, for --root to read",
            "把读到的内容写入一个新目录（去除个人信息），供 --root 读取",
        ).in_language(language),
    )
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help=Text(
            "leave out what is measured: bandwidths, the speed of the disk",
            "不做测量：内存与显卡带宽、磁盘速度",
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print the Machine, and save what was read where that is asked for."""
    from workhorse.machine.capture import refuse_used_folder, save_capture
    from workhorse.machine.probe import probe_and_record

    if args.save is not None:
        refuse_used_folder(args.save)  # before it takes its time
    with LateBar(MEASURING, args.lang) as bar:
        machine, recorded = probe_and_record(
            args.root,
            disk_path=places().data,
            measure_s=0.0 if args.no_measure else 1.0,
            peers=True,
            on_progress=lambda share: bar.step(round(share * 100), 100),
        )
    if args.json:
        print(to_json(machine))
    else:
        print_machine(machine, args.lang)
    if args.save is not None:
        saved = save_capture(recorded, machine, args.save)
        size = show_bytes(saved.n_bytes)
        told = Text(
            f"Wrote {saved.files} files, {size}, to {saved.folder}. Serial numbers, UUIDs, names of"
            " host and users, addresses and command lines were removed; PCI addresses were kept."
            " Look it through before you pass it on.",
            f"已向 {saved.folder} 写入 {saved.files} 个文件，共 {size}。序列号、UUID、主机名、"
            "用户名、网络地址和进程命令行均已去除；保留了 PCI 地址。转交他人之前请自行检查一遍。",
        )
        console(stderr=args.json).print(told.in_language(args.lang), markup=False)
    return EXIT_GOOD


def print_machine(machine: Machine, language: Language) -> None:
    """The machine as tables, and what could not be read."""
    print_facts(Text("Processors", "处理器"), cpu_rows(machine), language)
    print_nodes(machine, language)
    print_facts(Text("Memory", "内存"), memory_rows(machine), language)
    print_bandwidths(machine, language)
    print_facts(Text("Limits of this process", "本进程的限制"), limit_rows(machine), language)
    print_gpus(machine, language)
    print_links(machine, language)
    print_peer_copies(machine, language)
    print_gpu_processes(machine, language)
    print_facts(
        Text("Settings of the kernel", "内核设置"), settings_rows(machine, language), language
    )
    print_facts(Text("System", "系统"), system_rows(machine), language)
    print_events(machine, language)
    print_software(machine, language)
    print_disks(machine, language)
    sys.stdout.flush()
    print_doubts(machine, language)


def print_doubts(machine: Machine, language: Language) -> None:
    """GPUs that cannot be used, with what to do, and what could not be read."""
    from workhorse.doctor.gpu_access import judge_gpu_access  # tables that --help need not read

    out = console()
    for finding in judge_gpu_access(machine):
        seen, remedy = (text.in_language(language) for text in (finding.seen, finding.remedy))
        out.print(f"? {seen} {remedy}", style="yellow", markup=False)
        if finding.command:
            out.print(f"  $ {finding.command}", style="yellow", markup=False)
    for doubt in machine.doubts:
        out.print(f"? {doubt.in_language(language)}", style="yellow", markup=False)
