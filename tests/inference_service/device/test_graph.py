"""Calls to CUDA while a graph is captured, recorded by a stand-in for `torch.cuda`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_service.device import compiling
from inference_service.device.graph import Graph, Region, make_current
from inference_service.engine.engine import LiveEngine
from inference_service.families import antiphon_mini, loading, table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.loading import usable_device
from inference_service.models.errors import CheckpointError
from inference_service.options import WorkerOptions
from tests.inference_service.engine.support import tiny
from tests.support.patience import PATIENCE_S

SECOND = torch.device("cuda:1")


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = torch.device(device)

    def wait_stream(self, other: "Stream") -> None:
        assert other.device == self.device


class Recording:
    """CUDA with two devices: every computation notes the current device and stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = torch.device("cuda:0")
        self.streams = {index: Stream(torch.device("cuda", index)) for index in range(2)}
        self.captured_on: list[torch.device] = []
        self.ran_on: list[tuple[torch.device, torch.device]] = []
        self.default_capture = Stream(self.current)
        for name in ("device", "stream", "graph", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", CudaGraph)

    def current_stream(self, device: torch.device | None = None) -> Stream:
        return self.streams[int((device or self.current).index)]

    def compute(self) -> torch.Tensor:
        """A computation on the second device."""
        self.ran_on.append((self.current, self.current_stream().device))
        return torch.ones(1)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, torch.device(device)
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        with self.device(stream.device):
            yield

    @contextmanager
    def graph(self, graph: Any, *, stream: Stream | None = None, **_: Any) -> Iterator[None]:
        chosen = stream or self.default_capture
        self.captured_on.append(chosen.device)
        with self.stream(chosen):
            yield


class CudaGraph:
    def replay(self) -> None:
        pass


def test_graph_of_second_device_is_captured_on_a_stream_of_that_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Recording(monkeypatch)
    Graph(SECOND, cuda.compute)()
    assert cuda.captured_on == [SECOND]
    assert cuda.ran_on == [(SECOND, SECOND)] * 2, "once before the capture and once in it"
    assert cuda.current == torch.device("cuda:0")


def test_make_current_sets_a_cuda_device_without_cudnn_attention_and_leaves_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a mask it has returned zeros in half precision."""
    chosen: list[torch.device | bool] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", chosen.append)
    make_current(torch.device("cpu"))
    assert chosen == []
    make_current(SECOND)
    assert sorted(chosen, key=str) == [False, SECOND]


def test_usable_device_without_a_number_gets_that_of_the_current_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch, "empty", lambda *size, device: torch.zeros(*size))
    assert usable_device("cuda") == SECOND


def test_engine_thread_makes_the_device_of_its_model_current(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[str, torch.device]] = []
    done = threading.Event()

    def choose(device: torch.device) -> None:
        chosen.append((threading.current_thread().name, device))
        done.set()

    monkeypatch.setattr(torch.cuda, "set_device", choose)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    monkeypatch.setattr(DuplexRuntime, "device", SECOND)
    runtime = object.__new__(DuplexRuntime)
    runtime.info = antiphon_mini.components(*tiny.model()).info
    runtime.budget = runtime.most_waiting = 1
    engine = LiveEngine(runtime, 1, lambda told: None, lambda message: None)
    assert done.wait(PATIENCE_S)
    engine.stop()

    assert chosen == [("engine", SECOND)]


def test_loading_makes_the_device_current_before_anything_is_put_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that loads is not that of the engine, and captures on the current device."""
    done = list[tuple[str, torch.device]]()

    def load(model: Path, device: torch.device, *_: object) -> None:
        done.append(("loaded", device))
        raise CheckpointError("nothing to load")

    monkeypatch.setattr(loading, "usable_device", lambda name: SECOND)
    monkeypatch.setattr(compiling, "_chosen", None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(("current", device)))
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    monkeypatch.setattr(table, "load", load)
    options = WorkerOptions(model="antiphon-mini", device="cuda:1")

    with pytest.raises(CheckpointError, match="nothing to load"):
        loading.load_engine(options, lambda told: None, lambda message: None)

    assert done == [("current", SECOND), ("loaded", SECOND)]


def test_region_computes_each_shape_from_current_inputs() -> None:
    """Buffers are shared by all shapes, and what they held before is not seen."""
    region = Region(torch.device("cpu"), lambda name, one, other: (one * other + len(name), other.sum(0)))
    shapes = [(8, 4), (2, 4), (8, 1)]
    for shape in shapes:
        region.prepare("ab", [torch.ones(shape), torch.ones(4)])
    generator = torch.Generator().manual_seed(0)

    for shape in [*shapes, *reversed(shapes), (3, 4)]:
        given = torch.randn(shape, generator=generator), torch.randn(4, generator=generator)
        made, total = region("ab", *given)
        assert torch.equal(made, given[0] * given[1] + 2)
        assert torch.equal(total, given[1].sum(0))
    assert region.knows("ab", [torch.ones(2, 4), torch.ones(4)])
    assert not region.knows("a", [torch.ones(2, 4), torch.ones(4)])


def test_region_refuses_tensors_larger_than_the_first_ones() -> None:
    region = Region(torch.device("cpu"), lambda name, given: (given * 2,))
    region.prepare("", [torch.ones(4)])
    with pytest.raises(ValueError, match="took 256 bytes"):
        region.prepare("", [torch.ones(400)])
