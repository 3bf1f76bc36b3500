"""Texts that somebody pasted together: each known by what it holds, in whatever file it lies."""

import json
from pathlib import Path

import pytest
from captured_machines import CAPTURES, packed

from workhorse.cli import main
from workhorse.errors import AppError
from workhorse.machine.files import PackedFiles
from workhorse.machine.loose_texts import recognise, split_text
from workhorse.machine.open_root import open_files
from workhorse.machine.probe import probe, read_machine
from workhorse.records import Machine, RetiredPages

TEXTS = CAPTURES / "texts"
LSCPU = (TEXTS / "two_nodes" / "a.txt").read_text()
NUMACTL = (TEXTS / "two_nodes" / "b.txt").read_text()
SMI = (TEXTS / "two_nodes" / "c.txt").read_text()
TOPO = (TEXTS / "two_nodes" / "d.log").read_text()


def of(texts: dict[str, str]) -> Machine:
    return read_machine(PackedFiles(dict(recognise(texts).files)))


def test_a_folder_of_texts_is_a_machine() -> None:
    machine = probe(TEXTS / "two_nodes")
    assert machine.cpu.architecture == "x86_64"
    assert machine.cpu.name == "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz"
    assert len(machine.cpu.cores) == 28
    assert {core.cpus for core in machine.cpu.cores if core.node == 1} >= {(14, 42), (27, 55)}
    assert [node.distances for node in machine.nodes] == [(10, 21), (21, 10)]
    assert machine.nodes[0].memory_total_bytes == 128601 * 1024**2
    assert [gpu.name for gpu in machine.gpus] == ["Tesla V100-SXM2-16GB"] * 2
    assert machine.driver is not None and machine.driver.version == "570.133.20"
    assert [link.path for link in machine.gpu_links] == ["SYS"]
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 1] and machine.gpu_troubles == ()
    assert any("lscpu -e" in doubt.en for doubt in machine.doubts)
    told = machine.learned_from
    assert (told["cpu"], told["memory"]) == ("lscpu, numactl -H", "numactl -H")
    assert "nvidia-smi" in told["gpus"]


def test_nodes_of_cards_are_taken_from_the_topology_alone() -> None:
    topology = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\tX\tPIX\t0-7\t0-1\nGPU1\tPIX\tX\t\t\n"
    )
    assert [gpu.numa_node for gpu in of({"a": SMI, "b": topology}).gpus] == [None, None]
    spaces = TOPO.expandtabs()
    assert [gpu.numa_node for gpu in of({"a": SMI, "b": spaces}).gpus] == [0, 1]


def test_counts_of_one_cpu_and_numactls_nodes_give_four_sockets() -> None:
    machine = probe(TEXTS / "four_nodes")
    assert len({core.socket for core in machine.cpu.cores}) == 4
    assert machine.nodes[3].cpus == tuple(range(3, 88, 4))
    assert {core.node for core in machine.cpu.cores if core.socket == 3} == {3}
    assert "avx2" in machine.cpu.flags
    assert {event.number for event in machine.events or ()} >= {79, 13, 31, 45}


@pytest.mark.parametrize("prompt", ["$ ", "# ", "ann@box:~$ ", "[root@box ~]# ", "(v) ann@b:~/x$ "])
def test_one_file_with_prompts_holds_many_texts(prompt: str, tmp_path: Path) -> None:
    one = tmp_path / "mail.txt"
    one.write_text(
        f"Hello,\nhere is what you asked for\n{prompt}lscpu\n{LSCPU}{prompt}numactl -H\n{NUMACTL}"
        f"{prompt}uptime\n up 3 days\n{prompt}nvidia-smi topo -m\n{TOPO}\n{prompt}nvidia-smi\n{SMI}"
        f"{prompt}cat /proc/sys/kernel/numa_balancing\n1\n{prompt}sudo head -3 /etc/os-release\n"
        'NAME="Rocky Linux"\nPRETTY_NAME="Rocky Linux 8.10"\n'
    )
    machine = probe(one)
    whole = probe(TEXTS / "two_nodes")
    assert machine.cpu == whole.cpu and machine.nodes == whole.nodes and machine.gpus == whole.gpus
    assert machine.gpu_links == whole.gpu_links
    assert machine.system.distribution == "Rocky Linux 8.10"
    assert open_files(one).text("proc/sys/kernel/numa_balancing") == "1\n"


def test_texts_run_together_without_prompts_are_told_apart() -> None:
    parts = split_text(LSCPU + NUMACTL + SMI + TOPO)
    assert [path for path, _ in parts] == [
        "commands/lscpu.txt", "commands/numactl_-H.txt", "commands/nvidia-smi.txt",
        "commands/nvidia-smi_topo_-m.txt",
    ]  # fmt: skip
    assert "".join(text for _, text in parts) == LSCPU + NUMACTL + SMI + TOPO


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("\n==============NVSMI LOG==============\n\nDriver Version : 410.48\n",
         "commands/nvidia-smi_-q.txt"),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580\n",
         "commands/nvidia-smi.txt"),
        ("18:00.0 3D controller: NVIDIA Corporation GV100GL (rev a1)\n\tLnkSta: Width x8\n",
         "commands/lspci_-vv.txt"),
        ("0000:18:00.0 VGA compatible controller: NVIDIA\n", "commands/lspci_-vv.txt"),
        ("[    0.000000] Linux version 5.15.0\n", "commands/dmesg.txt"),
        ("[Mon May 25 12:35:01 2026] NVRM: Xid (PCI:0000:1b:00): 13\n", "commands/dmesg.txt"),
        ("Nov 30 12:00:00 box kernel: NVRM: Xid (PCI:0000:1b:00): 13\n", "commands/dmesg.txt"),
        ("# dmidecode 3.3\nHandle 0x0011, DMI type 17, 84 bytes\nMemory Device\n",
         "commands/dmidecode_-t_memory.txt"),
        ("MemTotal:  1000 kB\n", "proc/meminfo"),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", "proc/cpuinfo"),
        ("       total   used   free\nMem:   128601  5  6\n", "commands/free.txt"),
        ("always [madvise] never\n", "sys/kernel/mm/transparent_hugepage/enabled"),
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt\n", "proc/cmdline"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.1\n", "proc/driver/nvidia/version"),
        ("index, name, power.draw [W]\n0, Tesla P40, 9 W\n",
         "commands/nvidia-smi_--query-gpu.txt"),
        ("GPU 0: Tesla P40 (UUID: N/A)\n", "commands/nvidia-smi_-L.txt"),
        ("GPU 0: Tesla V100 (UUID: N/A)\n\t Link 0: 25.781 GB/s\n",
         "commands/nvidia-smi_nvlink_-s.txt"),
        ("\tGPU0\tGPU1\t\n GPU0\tX\tOK\n", "commands/nvidia-smi_topo_-p2p_r.txt"),
        ("== /sys/devices/system/node/node0/cpulist\n0-15\n",
         "sys/devices/system/node/node0/cpulist"),
        ("==> /proc/meminfo <==\nMemTotal: 5 kB\n", "proc/meminfo"),
        ("/sys/bus/pci/devices/0000:18:00.0/current_link_width:8\n",
         "sys/bus/pci/devices/0000:18:00.0/current_link_width"),
        ("== /sys/bus/pci/devices/0000:00:06.0\nvendor: 0x10de|\n",
         "sys/bus/pci/devices/0000:00:06.0/vendor"),
        ("nvcc: NVIDIA (R) Cuda compiler driver\n", "commands/nvcc_--version.txt"),
    ],
)  # fmt: skip
def test_each_text_is_known_by_what_it_holds(text: str, path: str) -> None:
    assert [known for known, _ in split_text(text)] == [path]
    fenced = f"```\r\n{text}```\n".replace("\n", "\r\n")
    assert [known for known, _ in split_text("\ufeff" + fenced)] == [path]


def test_what_nobody_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "lscpu.txt").write_text(LSCPU)
    (tmp_path / "letter.txt").write_text("Dear all,\nthe server is slow.\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)) * 9)
    doubt = probe(tmp_path).doubts[0]
    assert "letter.txt" in doubt.en and "picture.png" in doubt.en and "letter.txt" in doubt.zh
    assert "lscpu.txt" not in doubt.en and "empty.txt" not in doubt.en


def test_nothing_known_at_all_is_an_error_with_a_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("Dear all")
    for root in (tmp_path, tmp_path / "letter.txt"):
        assert main(["probe", "--root", str(root)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and str(root) in err and "lscpu" in err
    with pytest.raises(AppError):
        open_files(tmp_path / "letter.txt")


def test_texts_beside_a_captured_tree_fill_its_gaps(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    (tmp_path / "notes.txt").write_text(LSCPU + NUMACTL)
    machine = probe(tmp_path)
    assert machine.memory.total_bytes == 1000 * 1024
    assert len(machine.cpu.cores) == 28 and len(machine.nodes) == 2


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text(NUMACTL)
    (tmp_path / "linked.txt").symlink_to("/proc/cpuinfo")
    (tmp_path / "up").symlink_to("/")
    files = open_files(tmp_path)
    assert files.text("proc/cpuinfo") is None and files.said("numactl", "-H") == NUMACTL


def test_windows_texts_and_json_are_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(LSCPU.replace("\n", "\r\n").encode("utf-16"))
    assert len(probe(tmp_path).cpu.cores) == 28
    rows: list[dict[str, object]] = [{"field": "Architecture:", "data": "x86_64"},
            {"field": "CPU(s):", "data": "4", "children": [
                {"field": "On-line CPU(s) list:", "data": "0-3"}]},
            {"field": "Thread(s) per core:", "data": "1"}, {"field": "Socket(s):", "data": "1"},
            {"field": "Flags:", "data": "fpu avx avx2"}]  # fmt: skip
    as_json = tmp_path / "b.json"
    as_json.write_text(json.dumps({"lscpu": rows}))
    machine = probe(as_json)
    assert len(machine.cpu.cores) == 4 and machine.cpu.flags == ("avx", "avx2", "fpu")


CSV = (
    "index, name, uuid, compute_cap, driver_version, pci.bus_id, pcie.link.gen.current,"
    " pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max, memory.total [MiB],"
    " memory.free [MiB], clocks.max.sm [MHz], power.draw [W], power.limit [W], temperature.gpu,"
    " ecc.mode.current, persistence_mode, compute_mode, clocks_event_reasons.active,"
    " utilization.gpu [%], pstate, fan.speed [%]\n"
    "0, Tesla P40, GPU-0, 6.1, 550.163.01, 00000000:03:00.0, 1, 3, 16, 16, 24576 MiB, 24300 MiB,"
    " 1531 MHz, 9.87 W, 250.00 W, 31, Enabled, Disabled, Default, 0x0000000000000001, 0 %, P8,"
    " [N/A]\n"
    "1, Tesla P40, GPU-1, 6.1, 550.163.01, 00000000:82:00.0, 3, 3, 8, 16, 24576 MiB, 300 MiB,"
    " 1531 MHz, 143.10 W, 250.00 W, 88, Enabled, Disabled, Default, 0x0000000000000020, 99 %, P0,"
    " [N/A]\n"
)


@pytest.mark.parametrize("text", [CSV, CSV + CSV.partition("\n")[2], CSV.replace(" MiB", "")])
def test_a_table_that_was_asked_for_gives_the_cards(text: str) -> None:
    machine = of({"x": text})
    first, second = machine.gpus
    assert (first.name, first.compute_capability) == ("Tesla P40", (6, 1))
    assert (first.pcie_generation_now, second.pcie_width_now) == (1, 8)
    assert second.memory_free_bytes == 300 * 1024**2 and second.throttle_reasons == (
        "SW thermal slowdown",
    )
    assert (first.performance_state, first.fan_percent) == (8, None)
    assert first.power_draw_w == 9.87 and first.ecc_enabled is True and first.persistence is False
    assert machine.driver is not None and machine.driver.version == "550.163.01"


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<driver_version>550.163.01</driver_version>
\t<cuda_version>12.4</cuda_version>
\t<gpu id="00000000:18:00.0">
\t\t<product_name>Tesla V100-PCIE-16GB</product_name>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<pci><pci_device_id>1DB410DE</pci_device_id>
\t\t<pci_gpu_link_info><pcie_gen><max_link_gen>3</max_link_gen>
\t\t<current_link_gen>3</current_link_gen></pcie_gen>
\t\t<link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>
\t\t</link_widths></pci_gpu_link_info><replay_counter>42</replay_counter></pci>
\t\t<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
\t\t<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage><total>16384 MiB</total><free>16000 MiB</free></fb_memory_usage>
\t\t<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
\t\t<retired_pages>
\t\t<multiple_single_bit_retirement><retired_count>3</retired_count>
\t\t</multiple_single_bit_retirement>
\t\t<double_bit_retirement><retired_count>1</retired_count></double_bit_retirement>
\t\t<pending_blacklist>Yes</pending_blacklist></retired_pages>
\t\t<temperature><gpu_temp>41 C</gpu_temp></temperature>
\t\t<gpu_power_readings><current_power_limit>250.00 W</current_power_limit></gpu_power_readings>
\t\t<max_clocks><sm_clock>1380 MHz</sm_clock><mem_clock>877 MHz</mem_clock></max_clocks>
\t\t<processes><process_info><pid>77</pid><process_name>/opt/llama-server</process_name>
\t\t<used_memory>120 MiB</used_memory></process_info></processes>
\t</gpu>
</nvidia_smi_log>
"""


def test_the_query_as_xml_says_the_same() -> None:
    machine = of({"x": XML})
    (gpu,) = machine.gpus
    assert machine.driver is not None and machine.driver.cuda == "12.4"
    assert (gpu.name, gpu.pci_id) == ("Tesla V100-PCIE-16GB", "10de:1db4")
    assert (gpu.pcie_width_now, gpu.pcie_width_max, gpu.pcie_replays) == (8, 16, 42)
    assert gpu.retired_pages == RetiredPages(3, 1, True)
    assert gpu.throttle_reasons == ("idle",) and gpu.temperature_c == 41
    assert gpu.memory_clock_max_mhz == 877 and gpu.power_limit_w == 250
    assert [(p.pid, p.name) for p in gpu.processes or ()] == [(77, "llama-server")]


def test_a_table_without_names_is_not_known() -> None:
    loose = recognise({"load.csv": "timestamp, power.draw [W], utilization.gpu [%]\n1, 2 W, 3 %\n"})
    assert loose.unknown == ("load.csv",) and loose.files == {}


def test_of_a_table_and_a_query_the_query_counts() -> None:
    query = packed("h200")["commands/nvidia-smi_-q.txt"]
    assert [gpu.name for gpu in of({"a": CSV, "b": query}).gpus] == ["NVIDIA H200"]


@pytest.mark.parametrize(
    "text",
    ["node 9999 cpus: 0\n", "available: 2 nodes (0-1)\nnode 0 cpus: 0 99999\nnode 0 size: -5 MB\n",
     "Architecture: x86_64\nCPU(s): 99999999999\n", "Architecture: \x00\nThread(s) per core: 0\n",
     "Architecture: x\nCPU(s): 8\nThread(s) per core: 8\nSocket(s): 4096\nL3 cache: 9.9.9 MiB\n",
     "CPU SOCKET CORE\n" + "1 2 3\n" * 30000, '{"lscpu": 5}', '{"lscpu": [[{}]]}',
     "index, name\n" + "0, x\n" * 9999, "name, index\n" + '"' * 9999, CSV[:900],
     XML[:900], XML.replace("</gpu>", "").replace("</pci>", "<pci>" * 999), "<a>" * 9999 + XML,
     '{"lscpu": ' + "[" * 5000, "Architecture: x86\nNUMA node0 CPU(s): 0-8191,0-8191\n"],
)  # fmt: skip
def test_broken_texts_give_a_machine_all_the_same(text: str) -> None:
    assert of({"x": text, "y": NUMACTL}).nodes[0].distances == (10, 21)
    of({"x": text})


def test_a_megabyte_of_near_misses_is_read_in_bounded_time() -> None:
    for unit in ("GPU0 ", "total ", "[ 1.", "/sys/a/", "ann@", "+-----", "# ", "Handle 0x00\n"):
        assert len(recognise({"x": unit * (2**19 // len(unit))}).files) <= 1


def test_a_list_of_names_alone_is_a_machine_with_cards() -> None:
    listing = "".join(
        f"GPU {i}: {name} (UUID: GPU-00000000-0000-0000-0000-00000000000{i})\n"
        for i, name in enumerate(("Tesla V100-SXM2-16GB", "Tesla P40"))
    )
    assert recognise({"a.txt": listing}).unknown == ()
    machine = of({"a.txt": listing})
    assert [gpu.name for gpu in machine.gpus] == ["Tesla V100-SXM2-16GB", "Tesla P40"]
    assert machine.gpus[0].memory_total_bytes is None and machine.gpus[0].uuid is None


def test_limits_and_settings_as_their_commands_print_them() -> None:
    machine = of({"a.txt": "$ ulimit -l\n64\n$ sysctl -a\nvm.swappiness = 60\n"
                           "kernel.numa_balancing = 1\nvm.zone_reclaim_mode = 0\n"})  # fmt: skip
    assert machine.memory.memlock_bytes == 64 * 1024
    assert (machine.settings.swappiness, machine.settings.numa_balancing) == (60, True)
    assert machine.settings.zone_reclaim == 0
    assert of({"a.txt": "$ ulimit -l\nunlimited\n"}).memory.memlock_bytes is None


def test_names_that_a_table_cuts_are_whole_in_the_list() -> None:
    name = "NVIDIA GeForce RTX 2080 Ti"
    cut = SMI.replace("Tesla V100-SXM2-16GB", "NVIDIA GeForce ...", 1)
    assert cut != SMI
    listing = f"GPU 0: {name} (UUID: GPU-0)\nGPU 1: Tesla P40 (UUID: GPU-1)\n"
    names = [gpu.name for gpu in of({"a.txt": cut, "b.txt": listing}).gpus]
    assert names == [name, "Tesla V100-SXM2-16GB"]


def test_texts_without_a_word_of_gpus_do_not_claim_that_there_are_none() -> None:
    doubts = " ".join(doubt.en for doubt in of({"a.txt": LSCPU}).doubts)
    assert "whether there are any is unknown" in doubts
    for more in (SMI, "00:1f.2 SATA controller: Intel Corporation C610\n"):
        told = " ".join(doubt.en for doubt in of({"a.txt": LSCPU, "b.txt": more}).doubts)
        assert "whether there are any" not in told
