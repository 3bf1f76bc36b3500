"""Boxes with cards, drivers and engines, and what the doctor finds on them."""

from dataclasses import replace
from typing import Any

import builders
from workhorse.doctor.software import judge_software
from workhorse.records import (
    CudaToolkit,
    EngineFound,
    Finding,
    Gpu,
    GpuDriver,
    GpuTrouble,
    Machine,
    Model,
    Software,
)
from workhorse.units import MIB


def a_gpu(
    name: str, capability: tuple[int, int] | None, mib: int | None = None, **more: Any
) -> Gpu:
    memory = None if mib is None else mib * MIB
    return replace(
        builders.gpu(),
        name=name,
        compute_capability=capability,
        memory_total_bytes=memory,
        **more,
    )


V100 = a_gpu("Tesla V100-PCIE-16GB", (7, 0), 16160, pci_id="10de:1db4")
P40 = a_gpu("Tesla P40", (6, 1), 22919, pci_id="10de:1b38")
P100 = a_gpu("Tesla P100-PCIE-16GB", (6, 0), 16280, pci_id="10de:15f8")
K80 = a_gpu("Tesla K80", (3, 7), 11441, pci_id="10de:102d")
T4 = a_gpu("Tesla T4", (7, 5), 15360, pci_id="10de:1eb8")
A100 = a_gpu("NVIDIA A100-SXM4-80GB", (8, 0), 81920, pci_id="10de:20b2")
RTX5090 = a_gpu("NVIDIA GeForce RTX 5090", (12, 0), 32607, pci_id="10de:2b85")


def box(
    *gpus: Gpu,
    driver: str | None = "580.95.05",
    open_module: bool | None = None,
    engines: tuple[EngineFound, ...] = (),
    toolkits: tuple[str | None, ...] = (),
    troubles: tuple[GpuTrouble, ...] = (),
    glibc: str = "2.39",
    kernel: str = "6.1.0-18-amd64",
    flags: tuple[str, ...] = ("avx2", "avx512f", "fma"),
) -> Machine:
    made = builders.machine(gpus=gpus, flags=flags)
    return replace(
        made,
        driver=GpuDriver(driver, None, open_module) if driver or open_module is not None else None,
        system=replace(made.system, glibc=glibc, kernel=kernel),
        gpu_troubles=troubles,
        software=Software(tuple(CudaToolkit("/opt/cuda", each) for each in toolkits), engines),
    )


def engine(
    name: Any,
    version: str | None,
    sass: tuple[str, ...] | None = None,
    ptx: tuple[str, ...] | None = None,
) -> EngineFound:
    return EngineFound(name, "/opt/engine", version, sass, ptx)


def codes(machine: Machine, model: Model | None = None) -> set[str]:
    return {finding.code for finding in judge_software(machine, model)}


def worse_than_notes(machine: Machine, model: Model | None = None) -> set[str]:
    return {
        finding.code
        for finding in judge_software(machine, model)
        if finding.level in ("warning", "blocker")
    }


def one(code: str, machine: Machine, model: Model | None = None) -> Finding:
    (found,) = [each for each in judge_software(machine, model) if each.code == code]
    return found


def a_model(architecture: str, name: str = "m", quantisation: str = "q4_k") -> Model:
    return replace(
        builders.model(), architecture=architecture, name=name, quantisation=quantisation
    )
