"""Warm-up units before the first session, so that no session waits for lazy initialisation."""

import math
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from inference_service.engine.batch.speech import SpeechJob
from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    Mode,
    Sampling,
    StreamInput,
    TokensSetup,
    TranscribeSetup,
    UnitInput,
    UnitOverrides,
    Window,
)
from inference_service.session.base.session import QueuedUnit, Session, Stage
from inference_service.session.kinds.components import VOICES_AT_ONCE, SpeechCodes
from inference_service.session.kinds.duplex import DuplexSession

UNITS = 3
_SPOKEN = 0.4
"""Share of units with speech in a conversation."""


@torch.inference_mode()
def warm_up(runtime: Runtime) -> None:
    """Run each kind of session of the model on slot 0, then clear the slot."""
    if Mode.AUDIO in runtime.info.modes:
        _converse(runtime, 1)
    if Mode.TOKENS in runtime.info.modes:
        _continue(runtime)
    if Mode.TRANSCRIBE in runtime.info.modes:
        _transcribe(runtime)


@torch.inference_mode()
def unit_seconds(runtime: Runtime, sessions: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Return the cost of a second of each of `sessions` parallel conversations, with speech in 4 of 10 units.

    It is the least of `UNITS` measurements; 0 if no conversation fits into the context.
    """
    return _converse(runtime, sessions, clock)


def _converse(runtime: Runtime, count: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Run `UNITS` units in the first `count` slots; return the seconds per session of the fastest unit."""
    setup = DuplexSetup("", DuplexSettings(force_listen_count=0), Window(), seed=0, sees=runtime.info.sees)
    sessions = [runtime.open("warm-up", slot, setup, lambda event: None) for slot in range(count)]
    for session in sessions:
        session.preprocessor.begin()
        if runtime.start(session) is not None:
            return 0.0  # a context too small for any session
    tick, spent = Tick(runtime), math.inf
    silence = np.zeros(runtime.info.input_sample_rate_hz, np.float32)
    second = UnitInput(silence, (_picture(),) if runtime.info.sees else ())
    for number in range(1, UNITS + 1):
        for session in sessions:
            heard = session.preprocessor.prepare(second)
            unit = QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
            session.queue.prefill(unit)
        began = clock()
        _run(tick, *sessions)
        spoke = clock()
        if isinstance(runtime, DuplexRuntime):
            _speak(runtime, cast(Sequence[DuplexSession], sessions))
        spent = min(spent, spoke - began + _SPOKEN * (clock() - spoke))
    for session in sessions:
        runtime.clear(session.slot)
    return spent / count


def _run(tick: Tick, *sessions: Session[Any]) -> None:
    """Run ticks to the end of their work. A session that fails here would fail in service too."""
    while tick.has_work(sessions):
        tick.run(sessions)
    if any(session.stage is Stage.FAILED for session in sessions):
        raise RuntimeError("The model failed in its warm-up; the log has the error.")


def _picture() -> bytes:
    """Return a grey PNG."""
    data = BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(data, "PNG")
    return data.getvalue()


def _transcribe(runtime: Runtime) -> None:
    """Transcribe an utterance of one silent second."""
    session = runtime.open(
        "warm-up", 0, TranscribeSetup(Sampling(temperature=0.0), seed=0), lambda event: None
    )
    runtime.start(session)
    silence = np.zeros(runtime.info.input_sample_rate_hz, np.float32)
    heard = session.preprocessor.prepare(StreamInput(silence, begins=True, ends=True))
    session.queue.prefill(QueuedUnit(1, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True))
    _run(Tick(runtime), session)
    runtime.clear(0)


def _continue(runtime: Runtime) -> None:
    """Continue a chunk of two tokens."""
    sampling = Sampling(max_new_tokens=min(2, runtime.info.context_limit))
    session = runtime.open("warm-up", 0, TokensSetup(sampling, seed=0), lambda event: None)
    runtime.start(session)
    chunk = session.preprocessor.prepare(StreamInput((0, 1)))
    session.queue.prefill(QueuedUnit(1, chunk, time.monotonic(), overrides=UnitOverrides(), finalize=True))
    _run(Tick(runtime), session)
    runtime.clear(0)


def _speak(runtime: DuplexRuntime, sessions: Sequence[DuplexSession]) -> None:
    """Speak one full second in each session, independent of the model's decisions."""
    if runtime.speaker is None or runtime.components.speech is None:
        return
    keys = runtime.language.cache.keys
    hidden = keys.new_zeros(2, runtime.language.backbone.config.hidden_size)
    voices = [session.speech for session in sessions]
    jobs = [
        SpeechJob(
            *(voice, [0, 0], hidden),
            may_be_short=False,
            ends_turn=False,
            temperature=0.0,
            noise=voice.noise,
        )
        for voice in voices
    ]
    while unfinished := [job for job in jobs if not job.finished]:
        runtime.speaker.step(unfinished)
    said = [
        SpeechCodes(session.mouth, job.codes, is_last=True)
        for session, job in zip(sessions, jobs, strict=True)
    ]
    for begin in range(0, len(said), VOICES_AT_ONCE):
        runtime.components.speech.mouth.say(said[begin : begin + VOICES_AT_ONCE])
    for voice in voices:
        voice.end_turn()
