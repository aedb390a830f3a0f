"""A conversation with a tiny Moshi, tick by tick and without the engine's thread."""

import time
from dataclasses import replace

import torch
from torch import Tensor

from inference_service.families.moshi.runtime import SETTINGS, MoshiRuntime
from inference_service.families.moshi.session import FrameSession
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    UnitFormat,
    UnitInput,
    VoiceReference,
)
from inference_service.session.base.session import QueuedUnit
from tests.inference_service.engine.support.talk import Said
from tests.inference_service.engine.support.talker import Conversation

SAMPLES = 1920
GREEDY = replace(SETTINGS, greedy=True)
NATIVE = UnitFormat(0.08, 24_000)


def sound(frames: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(frames * SAMPLES, generator=generator)


class Caller(Conversation):
    """One conversation, frame after frame."""

    session: FrameSession

    def __init__(
        self,
        where: MoshiRuntime,
        slot: int = 0,
        *,
        settings: DuplexSettings = GREEDY,
        prompt: str = "",
        voice_id: str = "",
        units: UnitFormat = NATIVE,
        budget: int | None = None,
    ) -> None:
        voice = VoiceReference(voice_id=voice_id)
        setup = DuplexSetup(prompt, settings, where.info.window, 7, voice=voice, format=units)
        opened = where.open("caller", slot, setup, lambda events: None)
        assert isinstance(opened, FrameSession)
        super().__init__(where, opened, budget)

    def send(self, pcm: Tensor, *, force_listen: bool = False, decide: bool = True) -> None:
        self.sent += 1
        prepared = self.session.preprocessor.prepare(UnitInput(pcm.numpy()))
        self.session.queue.prefill(QueuedUnit(self.sent, prepared, time.monotonic()))
        if decide:
            self.decide(force_listen=force_listen)

    def say(self, pcm: Tensor, **how: bool) -> None:
        for frame in pcm.split(SAMPLES):
            self.send(frame, **how)
            self.work()

    @property
    def text(self) -> str:
        return Said(self.told).text

    @property
    def audio(self) -> Tensor:
        return torch.from_numpy(Said(self.told).sound)
