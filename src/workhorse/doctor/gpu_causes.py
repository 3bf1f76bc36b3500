"""What is said of each cause for which a GPU cannot be used."""

from dataclasses import dataclass

from workhorse.text import Text

_NVML = "NVML API reference: nvmlReturn_t (driver 580)"
_INSTALL = "NVIDIA driver installation guide"


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of one cause; `blocks`: not one GPU is usable while this lasts."""

    seen: Text
    why: Text
    remedy: Text
    source: str
    command: str | None = None
    blocks: bool = True


CAUSES: dict[str, Words] = {
    "no_driver": Words(
        Text("has no kernel driver", "没有内核驱动"),
        Text("Without NVIDIA's driver no engine can use it.", "没有 NVIDIA 驱动，引擎无法使用它。"),
        Text("Install NVIDIA's driver and restart.", "请安装 NVIDIA 官方驱动并重启。"),
        _INSTALL,
        blocks=False,  # it may only be there for the display
    ),
    "driver_not_told": Words(
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
    "other_driver": Words(
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
    "no_library": Words(
        Text(
            "cannot be reached: the driver's library libnvidia-ml.so.1 is not here",
            "无法访问：找不到驱动的用户态库 libnvidia-ml.so.1",
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
    "library_mismatch": Words(
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
    "not_loaded": Words(
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
    "no_device_nodes": Words(
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
    "no_permission": Words(
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
    "container": Words(
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
    "lost": Words(
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
    "not_shown": Words(
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
    "none_found": Words(
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
    "errors": Words(
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
    "inforom": Words(
        Text("has a damaged infoROM", "的 infoROM 已损坏"),
        Text(
            "The card keeps its settings, error counts and bad pages there: they are lost, and such"
            " cards often fail later.",
            "显卡在其中保存设置、错误计数和坏页记录：这些信息会丢失，此类显卡日后也常出故障。",
        ),
        Text(
            "Switch the machine off and on; if the warning stays, test the card under load before"
            " you rely on it, or replace it.",
            "请断电后再开机；若警告仍在，请先做负载测试再使用，或更换显卡。",
        ),
        "nvidia-smi's own warning",
        command="nvidia-smi -q -d ECC,PAGE_RETIREMENT",
        blocks=False,
    ),
    "unlicensed": Words(
        Text("is a vGPU without a licence", "是没有许可证的 vGPU"),
        Text(
            "A while after the start NVIDIA's driver slows it down, and CUDA may fail.",
            "启动一段时间后 NVIDIA 驱动会限制其性能，CUDA 也可能失败。",
        ),
        Text(
            "Give the virtual machine its licence token (nvidia-gridd), then look again.",
            "请为虚拟机配置许可证令牌（nvidia-gridd），然后再次查看。",
        ),
        "NVIDIA vGPU client licensing user guide",
        command="nvidia-smi -q | grep -iA2 licens",
        blocks=False,
    ),
    "no_power": Words(
        Text("gets too little power", "供电不足"),
        Text(
            "Its power cables are missing or are the wrong ones: a Tesla takes the CPU's 8-pin plug"
            " (EPS), not the one of a graphics card.",
            "供电线缺失或接错：Tesla 使用 CPU 的 8 针（EPS）插头，而非普通显卡的插头。",
        ),
        Text(
            "Switch the machine off and connect every power socket of the card.",
            "请关机后接好显卡的所有供电口。",
        ),
        _NVML + ", NVML_ERROR_INSUFFICIENT_POWER",
    ),
    "silent": Words(
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
    "unknown": Words(
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
