"""Attacks on the neighbours of a conversation with PersonaPlex: its frames stay the same and in time."""

from pathlib import Path
from typing import Any

import pytest
import torch

from inference_service.checkpoints.moshi.folder import load
from inference_service.families.moshi.runtime import MoshiRuntime
from inference_service.interface.engine import Done, End
from inference_service.interface.setups import DuplexSetup, UnitFormat, VoiceReference
from inference_service.session.base.session import Session, Stage
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.left import is_clean
from tests.inference_service.engine.support.moshi_caller import GREEDY, SAMPLES, Caller, sound
from tests.inference_service.engine.support.tiny_moshi import WINDOW

ROUNDS = 30
BUDGET = 16
"""Rows of a tick: fewer than a long prompt has."""
SECONDS = UnitFormat(1.04, 24_000)
LONG = "a pirate who sails the seven seas"


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> MoshiRuntime:
    folder: Path = tmp_path_factory.mktemp("personaplex") / "published"
    loaded = load(tiny_moshi.publish(folder, personaplex=True), torch.device("cpu"), torch.float32)
    return MoshiRuntime(loaded, 3)


class Flood:
    """Sends a second of sound for every frame that passes."""

    def __init__(self, where: MoshiRuntime) -> None:
        self._caller = Caller(where, 1, units=SECONDS, budget=BUDGET)

    def sessions(self, number: int) -> list[Session[Any]]:
        """Return the sessions that take part in the tick with this number."""
        self._caller.send(sound(13, number))
        return [self._caller.session]

    @property
    def has_happened(self) -> bool:
        first = self._caller.session.queue.first
        return first is not None and self._caller.sent - first.number > ROUNDS // 2


class Poison:
    """Every other frame comes to no numbers."""

    def __init__(self, where: MoshiRuntime) -> None:
        self._caller = Caller(where, 1, budget=BUDGET)
        self._hear = self._caller.session.hear
        self._caller.session.hear = self._poisoned  # type: ignore[method-assign]

    def _poisoned(self, row: torch.Tensor, *others: Any) -> None:
        self._hear(row if self._caller.sent % 2 else torch.full_like(row, torch.nan), *others)

    def sessions(self, number: int) -> list[Session[Any]]:
        self._caller.send(sound(1, number))
        return [self._caller.session]

    @property
    def has_happened(self) -> bool:
        ends = [event.end for event in self._caller.session.events if isinstance(event, Done)]
        return ends.count(End.FAILED) == ROUNDS // 2


class Prompts:
    """Opens session after session with a prompt that nearly fills the window."""

    def __init__(self, where: MoshiRuntime) -> None:
        self._where, self._opened, self._session = where, 0, self._open(where)

    def _open(self, where: MoshiRuntime) -> Session[Any]:
        voice = VoiceReference(voice_id="natm1")
        setup = DuplexSetup(LONG, GREEDY, where.info.window, 7, voice=voice)
        session = where.open("attacker", 1, setup, lambda events: None)
        session.preprocessor.begin()
        session.stage = Stage.OPENING
        return session

    def sessions(self, number: int) -> list[Session[Any]]:
        assert self._session.stage is not Stage.FAILED
        if self._session.stage is Stage.IDLE:
            assert self._session.context.prompt > WINDOW // 2
            self._session.leave()
            self._where.clear(self._session.slot)
            self._session = self._open(self._where)
            self._opened += 1
        return [self._session]

    @property
    def has_happened(self) -> bool:
        return self._opened > 2


def test_victim_under_each_attack_answers_every_tick_as_if_alone(where: MoshiRuntime) -> None:
    pcm = sound(ROUNDS, 99).split(SAMPLES)
    alone = Caller(where, prompt="be a tree", budget=BUDGET)
    alone.say(torch.cat(pcm))
    alone.leave()
    assert alone.text

    for begin in (Flood, Poison, Prompts):
        name = begin.__name__
        victim, attack = Caller(where, prompt="be a tree", budget=BUDGET), begin(where)
        attackers: list[Session[Any]] = []
        for number, frame in enumerate(pcm):
            attackers = attack.sessions(number)
            victim.send(frame)
            victim.tick.run([*attackers, victim.session])
            victim.told += victim.session.events
            victim.session.events.clear()
            assert len(victim.ends) == number + 1, f"{name}: frame {number} was not answered in its tick"
        assert attack.has_happened, name
        assert victim.text == alone.text, name
        assert torch.allclose(victim.audio, alone.audio, atol=1e-4), name
        victim.leave()
        for session in attackers:
            session.leave()
            where.clear(session.slot)
        assert all(is_clean(decoder.cache) for decoder in where.decoders), name
