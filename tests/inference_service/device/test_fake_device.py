"""MiniCPM-o on a fake second GPU: every tensor of every step is there, and nothing waits for the device."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from benchmarks.full_size.sizes import FULL, TINY
from inference_service.device.graph import Graph
from inference_service.engine.tick import Tick
from inference_service.families import minicpmo, minicpmo_voice
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, End, Event, Finalized, Piece
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    DuplexSetup,
    Picture,
    Sampling,
    SessionSetup,
    StreamInput,
    TokensSetup,
    TurnInput,
    UnitInput,
    UnitOverrides,
    VoiceReference,
    Window,
    WindowMode,
)
from inference_service.options import SpeechOptions
from inference_service.session.base.session import QueuedUnit
from inference_service.session.kinds.components import SpeechCodes
from inference_service.session.kinds.duplex import DuplexSession
from tests.inference_service.device.fakes import DEVICE, MARKS, Fakes, duplex_runtime
from tests.support.drawing import jpeg
from tests.support.long import long

pytestmark = MARKS
SLOTS = 3
LIMIT = 1024
VOICE_FRAMES = 100
SECOND = np.zeros(16_000, np.float32)
PICTURE = jpeg("red", "circle", (300, 170))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


@pytest.fixture
def runtime(fakes: Fakes) -> DuplexRuntime:
    return duplex_runtime(fakes, TINY, SLOTS, LIMIT)


def hold(
    fakes: Fakes, runtime: DuplexRuntime, setup: SessionSetup, *contents: Any, downloads: int = 2
) -> list[Event]:
    """Hold a session of these units, and return what it was told; `fakes.moves` begin with its opening.

    No tick makes more than so many `downloads`: one for tokens and one for codes of speech.
    """
    session = runtime.open("fake", 0, setup, lambda event: None)
    if isinstance(session, DuplexSession):
        session.preprocessor.begin()
    tick, told = Tick(runtime), list[Event]()
    prepared = [session.preprocessor.prepare(content) for content in contents]
    with fakes.on_device():
        fakes.moves.clear()
        for _ in runtime.prepare(session):
            pass
        assert runtime.start(session) is None
        for number, unit in enumerate(prepared, start=1):
            queued = QueuedUnit(number, unit, time.monotonic(), overrides=UnitOverrides(), finalize=True)
            session.queue.prefill(queued)
            while tick.has_work([session]):
                before = fakes.downloads
                tick.run([session])
                assert fakes.downloads - before <= downloads
            told += session.events
            session.events.clear()
        runtime.clear(0)
    return told


def ends(told: list[Event]) -> list[End]:
    """How each unit ended; none may have failed."""
    done = [event for event in told if isinstance(event, Done)]
    assert [event.failure for event in done] == [None] * len(done)
    return [event.end for event in done]


def samples(told: list[Event]) -> int:
    return sum(len(it.audio) for it in told if isinstance(it, Piece) and it.audio is not None)


@pytest.mark.long
def test_conversation_with_pictures_stays_on_a_second_gpu(fakes: Fakes, runtime: DuplexRuntime) -> None:
    settings = replace(runtime.info.duplex_defaults, force_listen_count=1)
    setup = DuplexSetup("Be brief.", settings, Window(), seed=1, sees=True)
    units = UnitInput(SECOND, (PICTURE,)), UnitInput(SECOND), UnitInput(SECOND, (PICTURE, PICTURE), 4)
    told = hold(fakes, runtime, setup, *units)
    assert ends(told) == [End.LISTEN, End.CHUNK, End.CHUNK]
    assert samples(told) > 24_000
    assert fakes.moves == []


def test_session_with_a_voice_of_its_own_opens_on_a_second_gpu(fakes: Fakes, runtime: DuplexRuntime) -> None:
    settings = replace(runtime.info.duplex_defaults, force_listen_count=0)
    setup = DuplexSetup("Be brief.", settings, Window(), seed=1, voice=VoiceReference(SECOND, SECOND))
    speech = runtime.components.speech
    assert speech is not None
    before = fakes.uploads
    told = hold(fakes, runtime, setup)
    assert told == []
    assert len(speech.mouth._last) == 1, "the voice was heard"  # type: ignore[attr-defined]
    assert fakes.uploads > before
    assert fakes.moves == []


@pytest.mark.parametrize("mode", [WindowMode.BASIC, WindowMode.CONTEXT])
@pytest.mark.long
def test_window_slides_on_a_second_gpu(fakes: Fakes, runtime: DuplexRuntime, mode: WindowMode) -> None:
    settings = replace(runtime.info.duplex_defaults, force_listen_count=0, generate_audio=False)
    window = Window(mode, 240, 200, max_units=3, remembered_tokens=20)
    setup = DuplexSetup("Be brief.", settings, window, seed=1)
    units = 9 if mode is WindowMode.BASIC else 5
    # One download for the tokens that close a unit, and one for the context behind the window's slide.
    told = hold(fakes, runtime, setup, *[UnitInput(SECOND)] * units, downloads=1 + 2)
    assert len(ends(told)) == units
    assert sum(it.dropped_units for it in told if isinstance(it, Finalized)) > 0
    assert fakes.moves == []


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.sample("0.8")
@long
def test_spoken_chat_with_a_picture_and_a_clip_stays_on_a_second_gpu(
    fakes: Fakes, runtime: DuplexRuntime, temperature: float
) -> None:
    sampling = Sampling(max_new_tokens=12, temperature=temperature, repetition_penalty=1.2)
    message = ChatMessage("user", ("What is it?", Picture(PICTURE), Clip(SECOND)))
    # No draw from zeros is settled by the likeliest ids: more are looked at, then all.
    told = hold(
        fakes, runtime, ChatSetup(sampling, seed=1), TurnInput((message,), speaks=True), downloads=2 + 2
    )
    assert len(ends(told)) == 1
    assert samples(told) > 0
    assert fakes.moves == []


def test_token_stream_stays_on_a_second_gpu(fakes: Fakes, runtime: DuplexRuntime) -> None:
    chunks = [StreamInput((1, 2, 3)), StreamInput("and so on")]
    told = hold(fakes, runtime, TokensSetup(Sampling(max_new_tokens=3, temperature=0.0), seed=1), *chunks)
    assert len(ends(told)) == 2
    assert fakes.moves == []


@pytest.mark.long
def test_full_size_tensors_match_reported_footprint(fakes: Fakes) -> None:
    """Weights by part, and the state of each session after it has spoken, per kind: within 5 %."""
    runtime = duplex_runtime(fakes, FULL, SLOTS, 8192)
    needs = minicpmo_voice.voice_memory(FULL.vocoder, SpeechOptions(), VOICE_FRAMES, can_clone=False)
    told = minicpmo.footprint(FULL.config, torch.bfloat16, 8192, needs, DEVICE)
    speech = runtime.components.speech
    assert speech is not None
    assert runtime.speaker is not None
    with fakes.on_device():
        ear, mouth = runtime.components.ear.initial_state(), speech.mouth.initial_state(None, 0)
        for _ in range(3):
            speech.mouth.say([SpeechCodes(mouth, [0] * 25, is_last=False)])
    session = {
        "context": runtime.language.cache.nbytes / SLOTS,
        "speech head": runtime.speaker.decoder.cache.nbytes / SLOTS,
        "ear": ear.nbytes,
        "vocoder": mouth.nbytes,
    }
    decoders = [runtime.language.backbone, runtime.components.head]
    language = {id(it): it.nbytes for part in decoders for it in part.parameters()}

    assert session == pytest.approx(told.session, rel=0.05)
    assert sum(language.values()) == pytest.approx(told.weights["language model"], rel=0.001)


@pytest.mark.parametrize(
    "misplaced",
    [
        lambda tensor: tensor + torch.zeros(3),
        lambda tensor: tensor + torch.zeros(3, device="cuda:0"),
        lambda tensor: tensor.sum().item(),
        lambda tensor: bool(tensor.sum()),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: F.linear(tensor, torch.zeros(3, 3)),
    ],
)
def test_fakes_reject_misplaced_tensors_and_host_synchronization(
    fakes: Fakes, misplaced: Callable[[torch.Tensor], object]
) -> None:
    with fakes.on_device():
        tensor = torch.empty(3, device=DEVICE)
        with pytest.raises((RuntimeError, DataDependentOutputException, DynamicOutputShapeException)):
            misplaced(tensor)


def test_fakes_notice_moves(fakes: Fakes) -> None:
    with fakes.on_device():
        torch.empty(3, device=DEVICE).cpu()
        torch.zeros(3).to(DEVICE)
        torch.zeros(3).to(torch.float16)
    assert fakes.moves == ["cuda:1 to cpu", "cpu to cuda:1"]


def test_fakes_notice_copies_in_a_captured_region(fakes: Fakes) -> None:
    numbers = np.zeros(3, np.float32)
    with fakes.on_device():
        (there,) = fakes.upload(DEVICE, numbers)
        with pytest.raises(AssertionError, match="a captured region uploads"):
            Graph(DEVICE, lambda: fakes.upload(DEVICE, numbers)[0])()
        with pytest.raises(AssertionError, match="a captured region downloads"):
            Graph(DEVICE, lambda: torch.zeros(len(fakes.download(there))))()
        fakes.upload(DEVICE, numbers)
