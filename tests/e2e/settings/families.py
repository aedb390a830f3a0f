"""Models of the families that ship, asked what they make of settings without a forward pass."""

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.checkpoints.location import find
from inference_service.config.resolve import SessionPlan, resolve
from inference_service.engine.runtime import Runtime
from inference_service.errors import UnitRefused, WorkerError
from inference_service.families import table
from inference_service.interface.engine import ModelInfo, Prefilled, Ready
from inference_service.rpc.messages import replies, requests
from inference_service.rpc.messages.requests import content
from tests.inference_service.models.minicpmo import whole

FAMILIES = ("antiphon-mini", "MiniCPM-o")


class Family:
    """A loaded model. A session has one plan; its units are read, not run."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def info(self) -> ModelInfo:
        return self.runtime.info

    def configure(self, config: pb.SessionConfig) -> "FamilySession":
        return FamilySession(self.runtime, resolve(config, self.info, lambda: 7))


class FamilySession:
    """One session of it; `ready` is the worker's answer to its config."""

    def __init__(self, runtime: Runtime, plan: SessionPlan) -> None:
        self._info, self._setup = runtime.info, plan.setup
        self.fingerprint = fingerprint(plan.setup)
        session = runtime.kinds[type(plan.setup)].open("s", 0, plan.setup, lambda events: None)
        self._preprocessor = session.preprocessor
        self.ready = replies.session_ready(Ready(9), plan, runtime.info, "w", 2).ready

    def read(self, request: pb.PrefillRequest, run: pb.GenerateUnit) -> tuple[str, pb.PrefillResponse]:
        """Return what the model gets of a unit, as a fingerprint, and the worker's answer to its input."""
        generate = requests.generate(run, self._setup, self._info)
        try:
            given = content(request, self._setup, self._info)
            prepared = self._preprocessor.prepare(given)
        except UnitRefused as refused:
            answer = Prefilled(request.unit, failure=refused.failure)
            return f"refused {refused.failure.field}", replies.prefilled(answer)
        ignored = getattr(prepared, "ignored_fields", ())
        slices = getattr(prepared, "slices", len(getattr(prepared, "pictures", ())))
        answer = Prefilled(request.unit, 9, vision_slices=slices, ignored_fields=ignored)
        return fingerprint((prepared, generate)), replies.prefilled(answer)


def load(name: str, folder: Path) -> Family:
    path = find("antiphon-mini") if name == "antiphon-mini" else whole.write(folder / "MiniCPM-o-tiny")
    with torch.inference_mode():
        return Family(table.load(path, torch.device("cpu"), 1024)(1))


def fingerprint(value: Any) -> str:
    """A text that differs where two settings differ in what the model gets."""
    match value:
        case torch.Tensor():
            return fingerprint(value.numpy())
        case np.ndarray():
            return f"{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]}"
        case enum.Enum():
            return value.name
        case str() | bytes() | int() | float() | None:
            return repr(value)
        case Mapping():
            return str({key: fingerprint(it) for key, it in value.items()})
        case list() | tuple() | set() | frozenset():
            return str([fingerprint(it) for it in value])
    if is_dataclass(value):
        told = {it.name: fingerprint(getattr(value, it.name)) for it in fields(value) if it.repr}
        told.pop("ignored_fields", None)
        return f"{type(value).__name__}{told}"
    return type(value).__name__


__all__ = ["FAMILIES", "Family", "FamilySession", "WorkerError", "load"]
