"""A few units before the first session, so that no caller pays for lazy set-up."""

import time

import torch

from inference_service.engine.api import DuplexSettings, DuplexSetup, UnitOverrides, Window
from inference_service.engine.conversation import Conversation
from inference_service.engine.duplex_runtime import DuplexRuntime
from inference_service.engine.intake import Perceived
from inference_service.engine.orders import PendingUnit
from inference_service.engine.speech import SpeechJob
from inference_service.engine.tick import Tick
from inference_service.media.mel import BANDS

UNITS = 3


@torch.inference_mode()
def warm_up(runtime: DuplexRuntime) -> float:
    """Hears and speaks `UNITS` units on slot 0 and clears it again; the slowest unit in seconds."""
    setup = DuplexSetup("", DuplexSettings(force_listen_count=0), Window(), seed=0)
    conversation = runtime.open("warm-up", 0, setup, lambda event: None)
    runtime.start(conversation)
    tick = Tick(runtime)
    vision = runtime.config.vision
    sides = (vision.image_size,) * 2 if vision else ()
    pictures = (torch.full((*sides, 3), 128, dtype=torch.uint8),) if sides else ()
    slowest = 0.0
    for number in range(1, UNITS + 1):
        begin = time.monotonic()
        perceived = Perceived(torch.full((100, BANDS), -1.0), pictures)
        unit = PendingUnit(number, perceived, begin, overrides=UnitOverrides(), finalize=True)
        conversation.orders.prefill(unit)
        while tick.has_work([conversation]):
            tick.run([conversation])
        _speak(runtime, conversation)
        slowest = max(slowest, time.monotonic() - begin)
    runtime.clear(0)
    return slowest


def _speak(runtime: DuplexRuntime, conversation: Conversation) -> None:
    """One full second of speech, whatever the model would have said."""
    hidden = torch.zeros(2, runtime.config.language.hidden_size, device=runtime.device)
    voice = conversation.speech
    job = SpeechJob(voice, [0, 0], hidden, may_be_short=False, temperature=0.0, generator=voice.generator)
    while not job.finished:
        runtime.speaker.step([job])
    runtime.model.vocoder.decode([job.codes], [conversation.vocoder])
    voice.end_turn()
