"""What NVML tells of a node's GPU."""

from collections.abc import Callable, Iterable
from typing import Any

import structlog
import torch
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmesh.harmless import LogsOnce

log = structlog.get_logger()


class GpuGauges(LogsOnce, Collector):
    """Memory and use of one card, whoever uses it. What NVML does not tell is absent: a part of a
    card (MIG) has no use.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        """`nvml` is the module pynvml, which has no types."""
        super().__init__()
        self._nvml = nvml
        self._handle = handle

    def collect(self) -> Iterable[Metric]:
        memory = self._asked(self._nvml.nvmlDeviceGetMemoryInfo)
        if memory is not None:
            yield from memory_families(memory.used, memory.total)
        rates = self._asked(self._nvml.nvmlDeviceGetUtilizationRates)
        if rates is not None:
            yield utilization_family(rates.gpu)

    def _asked(self, function: Callable[[Any], Any]) -> Any:
        try:
            return function(self._handle)
        except self._nvml.NVMLError as error:
            self.report_once(error)
            return None


def memory_families(used: float, total: float) -> list[Metric]:
    return [
        GaugeMetricFamily("kvmesh_gpu_memory_used_bytes", "Of the node's card, by all", value=used),
        GaugeMetricFamily("kvmesh_gpu_memory_total_bytes", "Of the node's card", value=total),
    ]


def utilization_family(percent: float) -> Metric:
    return GaugeMetricFamily(
        "kvmesh_gpu_utilization",
        "Share of the last moments in which the card computed, in [0, 1]",
        value=percent / 100,
    )


def find_gpu(device: torch.device) -> GpuGauges | None:
    """None for another device, without nvidia-ml-py, and where NVML does not know the card."""
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ModuleNotFoundError:
        log.warning("no_gpu_metrics", reason="nvidia-ml-py is not installed: kvmesh[gpu] has it")
        return None
    return open_gpu(pynvml, str(torch.cuda.get_device_properties(device).uuid))


def open_gpu(nvml: Any, uuid: str) -> GpuGauges | None:
    """`uuid` is the card's, as torch writes it."""
    try:
        nvml.nvmlInit()
        return GpuGauges(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError as error:
        log.warning("no_gpu_metrics", reason=str(error))
        return None
