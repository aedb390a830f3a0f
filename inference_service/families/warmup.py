"""A few units before the first session, so that no caller pays for lazy set-up."""

import time
from io import BytesIO
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from inference_service.api.setups import (
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
from inference_service.engine.batch.speech import SpeechJob
from inference_service.engine.runtime import Runtime
from inference_service.engine.session import QueuedUnit, Session, Stage
from inference_service.engine.sessions.components import SpeechCodes
from inference_service.engine.sessions.duplex import DuplexSession
from inference_service.engine.tick import Tick
from inference_service.families.duplex_runtime import DuplexRuntime

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
    setup = DuplexSetup("", DuplexSettings(force_listen_count=0), Window(), seed=0, sees=runtime.info.sees)
    session = cast(DuplexSession, runtime.open("warm-up", 0, setup, lambda event: None))
    session.preprocessor.begin()
    if runtime.start(session) is not None:
        return  # a context too small for any session
    tick = Tick(runtime)
    silence = np.zeros(runtime.info.input_sample_rate_hz, np.float32)
    second = UnitInput(silence, (_picture(),) if runtime.info.sees else ())
    for number in range(1, UNITS + 1):
        heard = session.preprocessor.prepare(second)
        unit = QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
        session.queue.prefill(unit)
        _run(tick, session)
        _speak(runtime, session)
    runtime.clear(0)


def _run(tick: Tick, session: Session[Any]) -> None:
    """Ticks to the end of its work. A session that fails here would in service too."""
    while tick.has_work([session]):
        tick.run([session])
    if session.stage is Stage.FAILED:
        raise RuntimeError("The model fails in its warm-up; the log says how.")


def _picture() -> bytes:
    """A grey PNG."""
    data = BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(data, "PNG")
    return data.getvalue()


def _write_down(runtime: Runtime) -> None:
    """An utterance of one silent second."""
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
    """A chunk of two tokens and what follows them."""
    sampling = Sampling(max_new_tokens=min(2, runtime.info.context_limit))
    session = runtime.open("warm-up", 0, TokensSetup(sampling, seed=0), lambda event: None)
    runtime.start(session)
    chunk = session.preprocessor.prepare(StreamInput((0, 1)))
    session.queue.prefill(QueuedUnit(1, chunk, time.monotonic(), overrides=UnitOverrides(), finalize=True))
    _run(Tick(runtime), session)
    runtime.clear(0)


def _speak(runtime: DuplexRuntime, session: DuplexSession) -> None:
    """One full second of speech, whatever the model would have said."""
    if runtime.speaker is None or runtime.components.speech is None:
        return
    hidden = torch.zeros(2, runtime.language.backbone.config.hidden_size, device=runtime.device)
    voice, state = session.speech, session.mouth
    job = SpeechJob(
        voice, [0, 0], hidden, may_be_short=False, ends_turn=False, temperature=0.0, generator=voice.generator
    )
    while not job.finished:
        runtime.speaker.step([job])
    runtime.components.speech.mouth.say([SpeechCodes(state, job.codes, is_last=True)])
    voice.end_turn()
