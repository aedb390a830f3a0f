"""Captures and compilations in service are counted and logged, those at the start are not."""

import logging
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as torch_flex

from antiphon_service.semconv import Preparation
from inference_service.device import compiling, flex
from inference_service.device.paged import AttentionBackend, gathered
from inference_service.device.preparations import PREPARATIONS
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.speech import Speaker
from inference_service.families.loading import load_engine
from inference_service.families.warmup import warm_up
from inference_service.options import WorkerOptions
from tests.inference_service.engine.batch.test_packed import HIDDEN, qwen3
from tests.inference_service.engine.support import tiny

WAYS = [
    AttentionBackend("flex", "", flex.over_contexts, all_rows=True),
    AttentionBackend("gathered", "", gathered),
]


@pytest.fixture(autouse=True)
def _start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a process does that has loaded nothing."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(PREPARATIONS, "_is_over", False)
    monkeypatch.setattr(PREPARATIONS, "late", type(PREPARATIONS.late)())


@pytest.fixture
def _compiler_forgets() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", WAYS, ids=lambda backend: backend.name)
def test_forward_of_a_shape_that_was_not_captured_is_counted_and_logged(
    backend: AttentionBackend, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    decoder = PackedDecoder(
        qwen3(), 2, 32, embeddings=nn.Embedding(50, HIDDEN), in_steps=True, backend=backend
    )
    with PREPARATIONS.under_way():
        decoder.forward([Segment(0, 0, 0, Rows.of_ids([1]))])
    decoder.forward([Segment(0, 1, 1, Rows.of_ids([2]))])
    assert not PREPARATIONS.late
    decoder.forward([Segment(slot, 2, 2, Rows.of_ids([3])) for slot in range(2)])
    assert PREPARATIONS.late == {Preparation.CAPTURE: 1}
    (logged,) = [it for it in caplog.records if it.levelno == logging.WARNING]
    assert logged.getMessage().startswith("region prepared in service")
    name = "Forward._compute" if backend.all_rows else "Step._compute"
    assert (logged.__dict__["preparation"], logged.__dict__["region"]) == ("capture", name)


def test_codes_of_a_crowd_that_were_not_captured_are_counted() -> None:
    head = tiny.model()[0].tts
    speaker = Speaker(head, 2, 64, 5, in_steps=True, backend=WAYS[0])
    with PREPARATIONS.under_way():
        speaker.capture()
    speaker._loop(2, 4)
    assert not PREPARATIONS.late
    speaker._loop(4, 4)
    assert PREPARATIONS.late == {Preparation.CAPTURE: 1}


@pytest.mark.usefixtures("_compiler_forgets")
def test_compilation_for_another_shape_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with PREPARATIONS.under_way():
        doubled = compiling.compiled(lambda given: given * 2)
        doubled(torch.ones(3))
    doubled(torch.zeros(3))
    assert not PREPARATIONS.late
    doubled(torch.ones(4))
    assert PREPARATIONS.late == {Preparation.COMPILATION: 1}


def test_start_that_fails_counts_nothing_afterwards() -> None:
    with pytest.raises(ValueError, match="no weights"), PREPARATIONS.under_way():
        raise ValueError("no weights")
    PREPARATIONS.note(Preparation.CAPTURE, "one of the next start")
    assert not PREPARATIONS.late


def test_engine_that_is_loaded_counts_what_comes_after_its_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that its warm-up makes."""

    def noted(runtime: object) -> None:
        warm_up(runtime)  # type: ignore[arg-type]
        PREPARATIONS.note(Preparation.CAPTURE, "at the start")

    monkeypatch.setattr("inference_service.families.warmup.warm_up", noted)
    options = WorkerOptions(model="antiphon-mini", slots=1, ear="fast")
    engine = load_engine(options, lambda told: None, lambda message: None)
    try:
        assert engine.occupancy().late_captures == 0
        PREPARATIONS.note(Preparation.CAPTURE, "in service")
        occupancy = engine.occupancy()
    finally:
        engine.stop()

    assert (occupancy.late_captures, occupancy.late_compilations) == (1, 0)
