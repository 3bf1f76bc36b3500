"""The kernel's settings, the board, and what this system runs inside of."""

from pathlib import Path

import pytest
from captured_machines import packed
from hypothesis import given
from hypothesis import strategies as st

from workhorse.codec import from_json, to_json
from workhorse.machine.enclosure import container_of, read_container, read_hypervisor
from workhorse.machine.files import DirectoryFiles, PackedFiles
from workhorse.machine.iommu import read_iommu
from workhorse.machine.settings import read_settings
from workhorse.machine.system import Running, read_board, read_note, read_system
from workhorse.records import KernelSettings, System

CPU = "sys/devices/system/cpu"
DMI = "sys/class/dmi/id"
GROUPS = "sys/kernel/iommu_groups"
X86 = ("avx2", "lm")


def test_settings_are_read_from_the_kernels_files() -> None:
    files: dict[str, object] = {
        f"{CPU}/cpufreq/policy0/scaling_governor": "schedutil\n",
        f"{CPU}/cpufreq/policy0/scaling_available_governors": "performance schedutil ondemand\n",
        f"{CPU}/cpufreq/policy1/scaling_governor": "performance\n",
        f"{CPU}/cpufreq/policy1/scaling_available_governors": "performance schedutil\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/vm/swappiness": "60\n",
        "proc/sys/vm/zone_reclaim_mode": "0\n",
        "proc/sys/vm/overcommit_memory": "2\n",
        "proc/sys/vm/nr_hugepages": "512\n",
        "proc/sys/vm/nr_overcommit_hugepages": "0\n",
        "proc/sys/kernel/randomize_va_space": "2\n",
    }
    assert read_settings(PackedFiles(files)) == KernelSettings(
        governors=("performance", "schedutil"),
        governors_available=("performance", "schedutil"),
        numa_balancing=True,
        swappiness=60,
        zone_reclaim=0,
        overcommit=2,
        huge_pages=512,
        huge_pages_overcommit=0,
        aslr=2,
    )


def test_an_old_kernel_keeps_the_governor_with_each_cpu() -> None:
    files: dict[str, object] = {
        f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave",
        f"{CPU}/cpu1/cpufreq/scaling_governor": "performance",
        f"{CPU}/cpufreq/boost": "1",
        f"{CPU}/cpuidle/current_driver": "intel_idle",
        "proc/meminfo": "HugePages_Total:      16\n",
    }
    settings = read_settings(PackedFiles(files))
    assert settings.governors == ("performance", "powersave")
    assert settings.governors_available == () and settings.huge_pages == 16


def test_a_kernel_without_settings_has_none_of_them() -> None:
    assert read_settings(PackedFiles({})) == KernelSettings()


@pytest.mark.parametrize(("text", "on"), [("0", False), ("1", True), ("2", False), ("3", True)])
def test_balancing_between_kinds_of_memory_is_not_between_nodes(text: str, on: bool) -> None:
    files = PackedFiles({"proc/sys/kernel/numa_balancing": text})
    assert read_settings(files).numa_balancing is on


@given(st.text(max_size=60))
def test_settings_that_make_no_sense_are_unknown(text: str) -> None:
    names = ("kernel/numa_balancing", "vm/swappiness", "vm/overcommit_memory", "vm/nr_hugepages")
    files: dict[str, object] = {f"proc/sys/{name}": text for name in names}
    files[f"{CPU}/cpufreq/policy0/scaling_governor"] = text
    settings = read_settings(PackedFiles(files))
    assert settings.swappiness is None or 0 <= settings.swappiness <= 200
    assert settings.overcommit in (None, 0, 1, 2)
    assert all(name.isascii() and name.isprintable() for name in settings.governors)


# ---------------------------------------------------------------- the board


@pytest.mark.parametrize(
    ("table", "board"),
    [
        ({"sys_vendor": "Dell Inc.", "product_name": "PowerEdge R730"}, "Dell Inc. PowerEdge R730"),
        (
            {"sys_vendor": "System manufacturer", "product_name": "System Product Name",
             "board_vendor": "ASUSTeK COMPUTER INC.", "board_name": "Z10PE-D8 WS"},
            "ASUSTeK COMPUTER INC. Z10PE-D8 WS",
        ),
        ({"sys_vendor": "To Be Filled By O.E.M.", "product_name": "Default string"}, None),
        ({"sys_vendor": "浪潮", "product_name": "NF5280M4\x1b[2J"}, "浪潮 NF5280M4 [2J"),
        ({"product_name": "00000000"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_board_has_its_makers_name_and_never_a_serial(
    table: dict[str, str], board: str | None
) -> None:
    files: dict[str, object] = {f"{DMI}/{name}": word for name, word in table.items()}
    files |= {f"{DMI}/{name}": "SN-4711" for name in ("product_serial", "board_serial")}
    assert read_board(PackedFiles(files)) == board


def test_a_captured_tree_without_links_still_has_its_board() -> None:
    files: dict[str, object] = {"sys/devices/virtual/dmi/id/product_name": "ProLiant DL380 Gen9"}
    assert read_board(PackedFiles(files)) == "ProLiant DL380 Gen9"


# ---------------------------------------------------------------- hypervisor


@pytest.mark.parametrize(
    ("files", "flags", "kind"),
    [
        ({f"{DMI}/sys_vendor": "Supermicro", f"{DMI}/product_name": "X10DRi"}, X86, ""),
        ({f"{DMI}/sys_vendor": "QEMU"}, (*X86, "hypervisor"), "kvm"),
        ({f"{DMI}/sys_vendor": "QEMU"}, X86, "kvm"),  # the flag is hidden for a passed GPU
        ({f"{DMI}/sys_vendor": "VMware, Inc."}, (*X86, "hypervisor"), "vmware"),
        (
            {
                f"{DMI}/sys_vendor": "Microsoft Corporation",
                f"{DMI}/product_name": "Virtual Machine",
            },
            (*X86, "hypervisor"),
            "hyper-v",
        ),
        ({f"{DMI}/sys_vendor": "Microsoft Corporation", f"{DMI}/product_name": "Server"}, X86, ""),
        ({"sys/hypervisor/type": "xen\n"}, (*X86, "hypervisor"), "xen"),
        (
            {"sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock"},
            (*X86, "hypervisor"),
            "kvm",
        ),
        ({}, (*X86, "hypervisor"), "unknown"),
        ({}, X86, ""),
        ({"proc/device-tree/hypervisor/compatible": "linux,kvm\x00"}, ("asimd",), "kvm"),
        ({}, ("asimd",), None),
        ({}, (), None),
    ],
)
def test_the_hypervisor_is_named_or_known_to_be_there(
    files: dict[str, object], flags: tuple[str, ...], kind: str | None
) -> None:
    assert read_hypervisor(PackedFiles(files), flags) == kind


# ---------------------------------------------------------------- container


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/1/cgroup": "0::/init.scope\n"}, ""),
        ({}, None),
        ({".dockerenv": "", "proc/1/cgroup": "0::/\n"}, "docker"),
        ({"run/.containerenv": 'engine="podman-4.9"\n'}, "podman"),
        ({"run/systemd/container": "lxc\n"}, "lxc"),
        ({"proc/self/cgroup": "12:memory:/docker/abc\n"}, "docker"),
        ({"proc/self/cgroup": "0::/system.slice/docker-abc.scope\n"}, "docker"),
        ({"proc/self/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/x\n"}, "kubernetes"),
        ({"proc/1/environ": "PATH=/bin\0container=oci\0"}, "oci"),
        ({"proc/1/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1\0"}, "kubernetes"),
        ({"run/secrets/kubernetes.io/x": ""}, "kubernetes"),
        ({"proc/1/environ": "container=\x1b[2J\0", "proc/1/cgroup": "0::/"}, ""),
        ({"proc/self/cgroup": "0::/user.slice/docker.service.mine\n"}, ""),
    ],
)
def test_containers_are_known_by_what_they_leave(
    files: dict[str, object], kind: str | None
) -> None:
    assert read_container(PackedFiles(files), None) == kind


def test_a_live_environment_is_never_read_as_a_file(tmp_path: Path) -> None:
    class Live(PackedFiles):
        live = True  # type: ignore[assignment]

        def text(self, path: str) -> str | None:
            assert not path.endswith("environ")
            return super().text(path)

    assert read_container(Live({"proc/1/environ": "container=oci\0"}), None) is None
    assert read_container(Live({}), "podman") == "podman"


def test_the_environment_of_this_process_may_name_its_container() -> None:
    assert container_of({"container": "lxc"}) == "lxc"
    assert container_of({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "container": "oci"}) == "kubernetes"
    for value in ("", "UPPER", "a" * 99, "x y", "\x00"):
        assert container_of({"container": value}) is None


def test_a_captures_note_keeps_the_container() -> None:
    note = '{"architecture": "x86_64", "container": "podman"}'
    running, doubts = read_note(PackedFiles({"workhorse-capture.json": note}))
    assert running.container == "podman" and doubts == ()


# ---------------------------------------------------------------- IOMMU


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({f"{GROUPS}/0/type": "DMA-FQ\n", f"{GROUPS}/1/type": "DMA\n"}, "translating"),
        ({f"{GROUPS}/0/type": "identity\n", f"{GROUPS}/1/type": "identity\n"}, "passthrough"),
        (
            {f"{GROUPS}/{i}/type": "identity" for i in range(9)} | {f"{GROUPS}/9/type": "DMA"},
            "passthrough",
        ),
        ({f"{GROUPS}/0/devices/x": "", "proc/cmdline": "intel_iommu=on iommu=pt"}, "passthrough"),
        ({f"{GROUPS}/0/devices/x": "", "proc/cmdline": "quiet intel_iommu=on"}, "translating"),
        ({f"{GROUPS}/0/devices/x": "", "proc/cmdline": "quiet"}, None),
        ({"sys/class/iommu/dmar0/x": "", "proc/cmdline": "intel_iommu=on,sm_on"}, "translating"),
        ({"proc/cmdline": "root=/dev/sda1 intel_iommu=off"}, "off"),
        ({"proc/cmdline": "root=/dev/sda1"}, None),  # a capture that may have left the rest out
        ({}, None),
    ],
)
def test_the_iommu_is_off_passing_or_translating(
    files: dict[str, object], state: str | None
) -> None:
    assert read_iommu(PackedFiles(files)) == state


def test_a_tree_with_an_empty_folder_of_iommus_has_it_off(tmp_path: Path) -> None:
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("quiet\n")
    assert read_iommu(DirectoryFiles(tmp_path)) == "off"


@given(st.dictionaries(st.sampled_from([
    f"{GROUPS}/0/type", "proc/cmdline", f"{DMI}/sys_vendor", f"{DMI}/product_name",
    "sys/hypervisor/type", "run/systemd/container", "proc/1/cgroup", "proc/1/environ",
    "proc/self/cgroup", "sys/class/iommu/dmar0", "workhorse-capture.json",
]), st.text(max_size=80)))  # fmt: skip
def test_any_files_give_a_system(files: dict[str, object]) -> None:
    packed_files = PackedFiles(dict(files))
    running, _ = read_note(packed_files)
    system = read_system(packed_files, running, X86)
    assert from_json(System, to_json(system), what="the system") == system
    for word in (system.board, system.hypervisor, system.container):
        assert word is None or word == "" or word.isprintable()


def test_the_h200_machine_is_a_guest() -> None:
    files = PackedFiles(packed("h200"))
    assert read_system(files, Running(), ("lm", "hypervisor")).hypervisor == "unknown"
