"""Services that the sessions of a ready worker share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inference_service.interface.engine import Engine, ModelInfo
from inference_service.observability.metrics import WorkerMetrics
from inference_service.observability.tracing import Tracing
from inference_service.rpc.messages.requests import Decoder
from inference_service.session.admission import Admission
from inference_service.session.machine import Limits
from inference_service.session.slots import SlotTable
from inference_service.session.usage import UsageTable


@dataclass(frozen=True)
class Backend:
    """Services that all sessions of a ready worker share."""

    worker_id: str
    engine: Engine
    info: ModelInfo
    slots: SlotTable
    limits: Limits
    clock: Callable[[], float]
    draw_seed: Callable[[], int]
    metrics: WorkerMetrics
    tracing: Tracing
    admission: Admission
    usages: UsageTable
    decoder: Decoder[Any] = field(default_factory=Decoder)
