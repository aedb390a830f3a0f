"""Captured seconds of sound: the same samples as others, whoever shares a pass and in whatever order."""

import random

import pytest
import torch
from torch import Tensor

from inference_service.device.graph import Graph
from inference_service.models.token2wav.model import Token2Wav
from inference_service.models.token2wav.stream import StreamCodes
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.test_streams import VARIANTS, codes_of


def turns(model: Token2Wav, captured: Token2Wav | None = None) -> list[Tensor]:
    """Turns of several streams that begin and end at different times, one of them in another voice."""
    draw, waves = random.Random(3), list[Tensor]()
    voice = model.hear(recorded.prompt("a"))
    if captured is not None:
        captured.capture(voice)
        model = captured
    other = model.hear(recorded.prompt("b"))
    streams = [model.initial_state(voice) for _ in range(2)] + [model.initial_state(other)]
    for second in range(9):
        jobs = []
        for number, stream in enumerate(streams):
            if second < number:
                continue
            ends = (second + number) % 5 == 4
            jobs.append(StreamCodes(stream, codes_of(draw, 11 if ends else 25), ends))
        waves += model.step(jobs)
    return waves


@VARIANTS
@pytest.mark.sample("hift")
def test_captured_seconds_are_the_same_as_others(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = turns(recorded.model(is_causal=is_causal))
    model = recorded.model(is_causal=is_causal)
    replays = 0
    run = Graph.__call__

    def counted(graph: Graph[Tensor]) -> Tensor:
        nonlocal replays
        replays += 1
        return run(graph)

    monkeypatch.setattr(Graph, "__call__", counted)

    found = turns(model, model)

    for one, other in zip(found, wanted, strict=True):
        # Streams of two voices share a pass of the vocoder, and captured ones have at most two streams.
        torch.testing.assert_close(one, other, atol=1e-3, rtol=0)
    assert replays > 30


@VARIANTS
def test_streams_that_were_said_keep_nothing_of_the_regions_memory(is_causal: bool) -> None:
    """The next pass writes there."""
    model = recorded.model(is_causal=is_causal)
    voice = model.hear(recorded.prompt("a"))
    model.capture(voice)
    assert model._seconds is not None
    rooms = [model._seconds._flowing._room, model._seconds._vocoding._room]
    spans = [range(it.data_ptr(), it.data_ptr() + it.nbytes) for it in rooms]
    stream, draw = model.initial_state(voice), random.Random(0)
    for _ in range(4):
        model.step([StreamCodes(stream, codes_of(draw))])
        kept = [*stream.flow.tensors, *stream.vocoder.tensors]
        assert not any(tensor.data_ptr() in span for tensor in kept for span in spans)
