"""A few units before the first session, so that no caller pays for lazy set-up."""

import time

import numpy as np
import torch

from inference_service.engine.api import (
    DuplexSettings,
    DuplexSetup,
    Mode,
    Sampling,
    StreamInput,
    TokensSetup,
    TranscribeSetup,
    UnitOverrides,
    Window,
)
from inference_service.engine.conversation import Conversation
from inference_service.engine.duplex_runtime import DuplexRuntime
from inference_service.engine.intake import Perceived
from inference_service.engine.orders import PendingUnit
from inference_service.engine.runtime import Runtime
from inference_service.engine.speech import SpeechJob
from inference_service.engine.tick import Tick
from inference_service.media.mel import BANDS

UNITS = 3


@torch.inference_mode()
def warm_up(runtime: Runtime) -> None:
    """Runs each kind of session that the model is there for on slot 0, and clears it again."""
    if isinstance(runtime, DuplexRuntime):
        _converse(runtime)
    if Mode.TOKENS in runtime.info.modes:
        _continue(runtime)
    if Mode.TRANSCRIBE in runtime.info.modes:
        _write_down(runtime)


def _converse(runtime: DuplexRuntime) -> None:
    """Hears and speaks `UNITS` units."""
    setup = DuplexSetup("", DuplexSettings(force_listen_count=0), Window(), seed=0)
    conversation = runtime.converse("warm-up", 0, setup, lambda event: None)
    runtime.start(conversation)
    tick = Tick(runtime)
    vision = runtime.config.vision
    sides = (vision.image_size,) * 2 if vision else ()
    pictures = (torch.full((*sides, 3), 128, dtype=torch.uint8),) if sides else ()
    for number in range(1, UNITS + 1):
        perceived = Perceived(torch.full((100, BANDS), -1.0), pictures)
        unit = PendingUnit(number, perceived, time.monotonic(), overrides=UnitOverrides(), finalize=True)
        conversation.orders.prefill(unit)
        while tick.has_work([conversation]):
            tick.run([conversation])
        _speak(runtime, conversation)
    runtime.clear(0)


def _write_down(runtime: Runtime) -> None:
    """An utterance of one silent second."""
    session = runtime.open(
        "warm-up", 0, TranscribeSetup(Sampling(temperature=0.0), seed=0), lambda event: None
    )
    runtime.start(session)
    silence = np.zeros(runtime.info.input_sample_rate_hz, np.float32)
    heard = session.intake.prepare(StreamInput(silence, begins=True, ends=True))
    session.orders.prefill(PendingUnit(1, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True))
    tick = Tick(runtime)
    while tick.has_work([session]):
        tick.run([session])
    runtime.clear(0)


def _continue(runtime: Runtime) -> None:
    """A chunk of two tokens and what follows them."""
    sampling = Sampling(max_new_tokens=min(2, runtime.info.context_limit))
    session = runtime.open("warm-up", 0, TokensSetup(sampling, seed=0), lambda event: None)
    runtime.start(session)
    chunk = session.intake.prepare(StreamInput((0, 1)))
    session.orders.prefill(PendingUnit(1, chunk, time.monotonic(), overrides=UnitOverrides(), finalize=True))
    tick = Tick(runtime)
    while tick.has_work([session]):
        tick.run([session])
    runtime.clear(0)


def _speak(runtime: DuplexRuntime, conversation: Conversation) -> None:
    """One full second of speech, whatever the model would have said."""
    hidden = torch.zeros(2, runtime.config.language.hidden_size, device=runtime.device)
    voice = conversation.speech
    job = SpeechJob(voice, [0, 0], hidden, may_be_short=False, temperature=0.0, generator=voice.generator)
    while not job.finished:
        runtime.speaker.step([job])
    runtime.model.vocoder.decode([job.codes], [conversation.vocoder])
    voice.end_turn()
