"""The six records that flow from the probe to the dashboard.

Machine: what is here. Model: what is wanted. Plan: what we decided. Launch: how to start it.
Measurement: what happened. Verdict: what it means. Each is one JSON document (see `codec`),
the same in `--json`, over HTTP, in the store and in the tests' goldens.

`None` means not known. Every numeric name carries its unit; a name without one is a count.
"""

from workhorse.records.gpu import (
    CopyBandwidth,
    EccCounts,
    Gpu,
    GpuDriver,
    GpuLink,
    GpuProcess,
    GpuTrouble,
    RetiredPages,
    RowRemaps,
)
from workhorse.records.machine import (
    Bandwidth,
    Core,
    Cpu,
    CudaToolkit,
    Dimm,
    Disk,
    EngineFound,
    KernelEvent,
    KernelSettings,
    Limits,
    Machine,
    Memory,
    NumaNode,
    Software,
    System,
)
from workhorse.records.measurement import Conditions, Measurement, Run
from workhorse.records.model import (
    Attention,
    Model,
    Projector,
    RecurrentState,
    SideCache,
    Tensor,
)
from workhorse.records.plan import (
    Basis,
    BudgetLine,
    EngineBuild,
    Estimate,
    Forecast,
    Launch,
    Plan,
    Reason,
    Rejected,
)
from workhorse.records.verdict import Finding, Level, Verdict

__all__ = [
    "Attention",
    "Bandwidth",
    "Basis",
    "BudgetLine",
    "Conditions",
    "CopyBandwidth",
    "Core",
    "Cpu",
    "CudaToolkit",
    "Dimm",
    "Disk",
    "EccCounts",
    "EngineBuild",
    "EngineFound",
    "Estimate",
    "Finding",
    "Forecast",
    "Gpu",
    "GpuDriver",
    "GpuLink",
    "GpuProcess",
    "GpuTrouble",
    "KernelEvent",
    "KernelSettings",
    "Launch",
    "Level",
    "Limits",
    "Machine",
    "Measurement",
    "Memory",
    "Model",
    "NumaNode",
    "Plan",
    "Projector",
    "Reason",
    "RecurrentState",
    "Rejected",
    "RetiredPages",
    "RowRemaps",
    "Run",
    "SideCache",
    "Software",
    "System",
    "Tensor",
    "Verdict",
]
