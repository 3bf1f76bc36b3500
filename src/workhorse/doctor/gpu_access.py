"""Why a GPU cannot be used, and what to do about it: one finding a cause. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workhorse.knowledge.gpus import Generation, cards_with_id, generation_of
from workhorse.records import Finding, GpuTrouble, Level, Machine
from workhorse.text import Text

_EVIDENCE_MAX = 16
_PLURAL = {"is": "are", "has": "have", "answers": "answer"}
_NVML = "NVML API reference: nvmlReturn_t (driver 580)"
_INSTALL = "NVIDIA driver installation guide"


@dataclass(frozen=True, slots=True)
class _Words:
    """What is said of one cause; `blocks`: not one GPU is usable while this lasts."""

    seen: Text
    why: Text
    remedy: Text
    source: str
    command: str | None = None
    blocks: bool = True


_CAUSES: dict[str, _Words] = {
    "no_driver": _Words(
        Text("has no kernel driver", "没有内核驱动"),
        Text("Without NVIDIA's driver no engine can use it.", "没有 NVIDIA 驱动，引擎无法使用它。"),
        Text("Install NVIDIA's driver and restart.", "请安装 NVIDIA 官方驱动并重启。"),
        _INSTALL,
        blocks=False,  # it may only be there for the display
    ),
    "driver_not_told": _Words(
        Text(
            "is on the bus; whether a driver holds it is not told",
            "在总线上；没有信息说明是否有驱动接管它",
        ),
        Text(
            "`lspci` without options names the cards and nothing of their drivers.",
            "不带选项的 `lspci` 只列出显卡，不含驱动信息。",
        ),
        Text(
            "Add the output of `nvidia-smi -q` and of the command below.",
            "请补充 `nvidia-smi -q` 和下面命令的输出。",
        ),
        "lspci(8)",
        command="sudo lspci -nnvv -d 10de:",
        blocks=False,
    ),
    "other_driver": _Words(
        Text("is held by another driver", "被其他驱动占用"),
        Text(
            "CUDA needs NVIDIA's own driver: nouveau has no CUDA, vfio-pci keeps the card for a"
            " virtual machine.",
            "CUDA 需要 NVIDIA 官方驱动：nouveau 不支持 CUDA，vfio-pci 会把显卡留给虚拟机。",
        ),
        Text(
            "For nouveau: install NVIDIA's driver (it turns nouveau off) and restart. For"
            " vfio-pci: use the card in its virtual machine, or take it out of that set-up.",
            "若为 nouveau：安装 NVIDIA 官方驱动（会停用 nouveau）并重启；"
            "若为 vfio-pci：请在对应虚拟机中使用，或取消直通配置。",
        ),
        _INSTALL,
        blocks=False,
    ),
    "no_library": _Words(
        Text(
            "has its kernel driver, but the library libnvidia-ml.so.1 is not here",
            "已有内核驱动，但找不到用户态库 libnvidia-ml.so.1",
        ),
        Text(
            "Engines reach the card through the driver's libraries.",
            "引擎通过驱动的用户态库访问显卡。",
        ),
        Text(
            "Install the libraries of the same driver version (package libnvidia-compute or"
            " nvidia-driver-cuda-libs), then run `ldconfig`.",
            "请安装同一驱动版本的用户态库（软件包 libnvidia-compute 或 nvidia-driver-cuda-libs），"
            "然后运行 `ldconfig`。",
        ),
        _INSTALL,
    ),
    "library_mismatch": _Words(
        Text(
            "The driver's kernel module and its libraries are of different versions",
            "驱动的内核模块与用户态库版本不一致",
        ),
        Text(
            "The driver was updated while the old module stayed loaded; CUDA refuses to start.",
            "驱动已更新，但旧的内核模块仍在运行，CUDA 拒绝启动。",
        ),
        Text(
            "Restart the machine. To stop it coming back, hold the driver's packages.",
            "请重启机器；为避免再次发生，可锁定驱动软件包的版本。",
        ),
        _NVML + ", NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        command="sudo reboot",
    ),
    "not_loaded": _Words(
        Text("NVIDIA's kernel module is not loaded", "NVIDIA 内核模块未加载"),
        Text(
            "After a kernel update the module is often not built for the new kernel; Secure Boot"
            " refuses unsigned ones.",
            "内核更新后，模块常未为新内核重新编译；安全启动（Secure Boot）会拒绝未签名的模块。",
        ),
        Text(
            "Load it and read what the kernel says; if it is missing, build it (`dkms"
            " autoinstall`) or reinstall the driver.",
            "请加载模块并查看内核日志；若模块缺失，请重新编译（`dkms autoinstall`）或重装驱动。",
        ),
        _NVML + ", NVML_ERROR_DRIVER_NOT_LOADED",
        command="sudo modprobe nvidia; sudo dmesg | grep -iE 'nvrm|nvidia' | tail",
    ),
    "no_device_nodes": _Words(
        Text(
            "The kernel module runs, but /dev/nvidia* are missing",
            "内核模块已运行，但缺少 /dev/nvidia* 设备文件",
        ),
        Text(
            "Programs open the card through these files; nothing made them since the start.",
            "程序通过这些设备文件访问显卡；开机后没有任何程序创建它们。",
        ),
        Text(
            "Make them now; nvidia-persistenced makes them at every start.",
            "请立即创建；启用 nvidia-persistenced 可在每次开机时自动创建。",
        ),
        _INSTALL + ": device node verification",
        command="sudo nvidia-modprobe -u -c=0",
    ),
    "no_permission": _Words(
        Text("This user may not open /dev/nvidia*", "当前用户无权打开 /dev/nvidia*"),
        Text("The driver answers nobody else.", "驱动只应答有权限的用户。"),
        Text(
            "Join the group that owns the files (often `video` or `render`) and log in again, or"
            " ask the administrator.",
            "请加入拥有这些文件的用户组（通常为 `video` 或 `render`）并重新登录，或联系管理员。",
        ),
        _NVML + ", NVML_ERROR_NO_PERMISSION",
        command='ls -l /dev/nvidia*; sudo usermod -aG video "$USER"',
    ),
    "container": _Words(
        Text("The GPUs were not handed to this container", "GPU 没有交给这个容器"),
        Text(
            "The host has them; inside, their libraries or device files are missing. They also go"
            " when the host's systemd reloads while the container runs.",
            "宿主机上有 GPU，但容器内缺少其用户态库或设备文件；"
            "容器运行期间宿主机执行 systemd reload 也会使其丢失。",
        ),
        Text(
            "Install nvidia-container-toolkit on the host and start the container anew with"
            " `--gpus all`.",
            "请在宿主机安装 nvidia-container-toolkit，并用 `--gpus all` 重新创建容器。",
        ),
        "NVIDIA Container Toolkit: installation guide, troubleshooting",
        command="docker run --gpus all ...",
        blocks=False,  # the CPUs may be all that it was meant to use
    ),
    "lost": _Words(
        Text("has fallen off the bus", "已从总线掉线"),
        Text(
            "Power, heat, the slot's contact or the card itself: the driver cannot reach it until"
            " the machine is switched off and on.",
            "原因可能是供电、过热、插槽接触不良或显卡故障；断电重启之前驱动无法访问它。",
        ),
        Text(
            "Switch the machine off and on (a restart is often not enough), seat the card and its"
            " power plugs anew, look at its temperature, and at the Xid in the kernel's log.",
            "请断电后再开机（仅重启往往不够），重新插好显卡与供电线，检查温度，"
            "并查看内核日志中的 Xid。",
        ),
        _NVML + ", NVML_ERROR_GPU_IS_LOST",
        command="sudo dmesg | grep -iE 'xid|fallen off'",
    ),
    "not_shown": _Words(
        Text("is on the bus, but the driver does not list it", "在总线上，但驱动没有列出它"),
        Text(
            "It is held back (a container gets some cards only), not supported by this driver, or"
            " it failed to start.",
            "可能是被保留（容器只分到部分显卡）、不受此驱动支持，或初始化失败。",
        ),
        Text(
            "Read what the driver says of it in the kernel's log.",
            "请查看内核日志中驱动对它的说明。",
        ),
        _INSTALL,
        command="sudo dmesg | grep -i nvrm",
    ),
    "none_found": _Words(
        Text("NVIDIA's driver finds no card", "NVIDIA 驱动没有找到任何显卡"),
        Text(
            "No card is seated, this driver does not drive the ones that are, or they failed to"
            " start.",
            "可能没有插卡、此驱动不支持所插的卡，或显卡初始化失败。",
        ),
        Text(
            "See whether the bus shows the cards, and what the driver says of them. Kepler needs"
            " branch 470, Maxwell to Volta 580 or older, Blackwell the open kernel module.",
            "请查看总线上是否有显卡，以及驱动对它们的说明。Kepler 需要 470 分支，Maxwell 到 Volta"
            " 需要 580 或更旧的分支，Blackwell 需要开源内核模块。",
        ),
        _INSTALL,
        command="lspci -nnk -d 10de:; sudo dmesg | grep -i nvrm",
        blocks=False,  # the machine may have none
    ),
    "errors": _Words(
        Text(
            "answers the driver's questions with errors",
            "对驱动的查询返回错误",
        ),
        Text(
            "A sensor or the card's controller no longer answers: often the first sign of a card"
            " that is about to fall off the bus, of bad power or of heat.",
            "传感器或显卡控制器已无响应：往往是即将掉线、供电不良或过热的先兆。",
        ),
        Text(
            "Look for Xid lines in the kernel's log, then switch the machine off and on; if it"
            " comes back, check power cables and seat, and try the card in another machine.",
            "请在内核日志中查找 Xid，然后断电重启；若再次出现，请检查供电线和插槽，"
            "并换一台机器试卡。",
        ),
        "nvidia-smi(1): ERR! and Unknown Error stand for values that could not be read",
        command="sudo dmesg | grep -iE 'xid|nvrm'",
        blocks=False,
    ),
    "silent": _Words(
        Text("The driver gives no answer", "驱动没有响应"),
        Text(
            "A card that hangs holds up every program that asks for the GPUs.",
            "一张卡死的显卡会拖住所有查询 GPU 的程序。",
        ),
        Text(
            "Look for Xid lines in the kernel's log, then switch the machine off and on.",
            "请在内核日志中查找 Xid，然后断电重启。",
        ),
        _NVML,
        command="sudo dmesg | grep -iE 'xid|nvrm'",
    ),
    "unknown": _Words(
        Text("The driver does not work", "驱动无法工作"),
        Text("No engine can use the GPUs until it does.", "在恢复之前，任何引擎都无法使用 GPU。"),
        Text(
            "Look at what `nvidia-smi` and the kernel's log say. In a container that worked before,"
            " start it anew: a reload of the host's systemd takes its GPUs away.",
            "请查看 `nvidia-smi` 与内核日志的输出。若在此前正常的容器中，请重新创建容器："
            "宿主机执行 systemd reload 会收回其 GPU。",
        ),
        _NVML,
        command="nvidia-smi; sudo dmesg | grep -i nvrm",
    ),
}


def judge_gpu_access(machine: Machine) -> tuple[Finding, ...]:
    """What keeps GPUs from being used: one finding for each cause, with the cards it holds."""
    by_code: dict[str, list[GpuTrouble]] = {}
    for trouble in machine.gpu_troubles:
        by_code.setdefault(trouble.code, []).append(trouble)
    return tuple(_finding(machine, code, troubles) for code, troubles in by_code.items())


def _finding(machine: Machine, code: str, troubles: Sequence[GpuTrouble]) -> Finding:
    words = _CAUSES[code]
    remedy = words.remedy
    if code == "no_driver" and machine.driver is not None:
        version = machine.driver.version or ""
        remedy = Text(
            f"NVIDIA's driver {version} is installed but has not taken the card: read what the"
            " kernel's log says of it (`sudo dmesg | grep -i nvrm`).",
            f"已安装 NVIDIA 驱动 {version}，但它没有接管这张卡：请查看内核日志的说明"
            "（`sudo dmesg | grep -i nvrm`）。",
        )
    if code in ("no_driver", "other_driver", "not_shown", "driver_not_told"):
        remedy = joined(remedy, fitting_driver(t.pci_id for t in troubles))
    level: Level = "blocker" if words.blocks and not machine.gpus else "warning"
    if code == "driver_not_told" or (code == "not_shown" and machine.system.container):
        level = "note"
    return Finding(
        code=f"gpu.{code.replace('_', '-')}",
        level=level,
        seen=_seen(words.seen, troubles),
        why=words.why,
        remedy=remedy,
        source=words.source,
        command=words.command,
        evidence=_evidence(machine, troubles),
        share_lost=1.0 if level == "blocker" else None,
        sure="likely" if code in ("container", "unknown", "errors") else "certain",
    )


def _seen(what: Text, troubles: Sequence[GpuTrouble]) -> Text:
    """`NVIDIA card 0000:18:00.0 (10de:1db6) has fallen off the bus: GPU is lost.`"""
    cards = [t for t in troubles if t.pci_address is not None]
    said = "; ".join(dict.fromkeys(t.said.rstrip(".") for t in troubles if t.said))
    en, zh = what.en, what.zh
    if cards:
        listed = [f"{t.pci_address} ({t.pci_id or '?'})" for t in cards[:8]]
        more = f" +{len(cards) - 8}" if len(cards) > 8 else ""
        plural = "s" if len(cards) > 1 else ""
        names = ", ".join(listed) + more
        if _of_a_card(what):
            en = _of_several(en) if plural else en
            en, zh = f"NVIDIA card{plural} {names} {en}", f"NVIDIA 显卡 {names} {zh}"
        else:
            en, zh = f"{en} (NVIDIA card{plural} {names})", f"{zh}（NVIDIA 显卡 {names}）"
    elif _of_a_card(what):
        en, zh = f"An NVIDIA card {en}", f"有一张 NVIDIA 显卡{zh}"
    end = (f": {said}", f"：{said}") if said else ("", "")
    return Text(en + end[0] + ".", zh + end[1] + "。")


def _of_several(words: str) -> str:
    """`have fallen off the bus` of `has fallen off the bus`."""
    verb, _, rest = words.partition(" ")
    return f"{_PLURAL.get(verb, verb)} {rest}"


def _of_a_card(what: Text) -> bool:
    """Whether the words go on after the name of a card."""
    return what.en[0].islower()


def _evidence(machine: Machine, troubles: Sequence[GpuTrouble]) -> tuple[str, ...]:
    lines = [" ".join(part for part in (t.pci_address, t.pci_id, t.said) if part) for t in troubles]
    driver = machine.driver
    if driver is not None and driver.version is not None:
        kind = {True: ", open kernel module", False: ", proprietary kernel module", None: ""}
        lines.append(f"driver {driver.version}{kind[driver.open_module]}")
    if machine.system.container:
        lines.append(f"container: {machine.system.container}")
    return tuple(line for line in dict.fromkeys(lines) if line)[:_EVIDENCE_MAX]


def fitting_driver(pci_ids: Iterable[str | None]) -> Text:
    """Which driver the cards need, where the table of cards knows it."""
    needs: list[Text] = []
    for generation in dict.fromkeys(filter(None, map(_generation, pci_ids))):
        if generation.driver_last is not None:
            needs.append(
                Text(
                    f"The last driver branch for {generation.name} is {generation.driver_last}.",
                    f"支持 {generation.name} 的最后一个驱动分支是 {generation.driver_last}。",
                )
            )
        if generation.kernel_module == "proprietary":
            needs.append(
                Text(
                    f"{generation.name} needs the proprietary kernel module, not the open one.",
                    f"{generation.name} 需要专有内核模块，不支持开源内核模块。",
                )
            )
    return Text(" ".join(need.en for need in needs), "".join(need.zh for need in needs))


def _generation(pci_id: str | None) -> Generation | None:
    capabilities = {card.capability for card in cards_with_id(pci_id or "")}
    return generation_of(capabilities.pop()) if len(capabilities) == 1 else None


def joined(one: Text, other: Text) -> Text:
    """Two texts, one after the other."""
    return Text(f"{one.en} {other.en}".strip(), one.zh + other.zh)
