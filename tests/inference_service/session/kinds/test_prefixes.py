"""Compute common beginnings of sessions once; sessions share what is equal and nothing else."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_service.engine.batch.decoder import Segment
from inference_service.engine.batch.pages import PAGE
from inference_service.engine.tick import Tick
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, Event, Piece, Ready
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Content,
    DuplexSettings,
    DuplexSetup,
    Sampling,
    SessionSetup,
    StreamInput,
    Tenant,
    TokensSetup,
    TranscribeSetup,
    TurnInput,
    UnitInput,
    UnitOverrides,
    VoiceReference,
    Window,
)
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.guests import Guest
from tests.inference_service.engine.support.left import is_clean
from tests.inference_service.engine.test_shares import sound
from tests.support.long import seeds

SLOTS = 3
PROMPT = "You are kind, you know the weather, and you answer in a word or two, whoever asks."
CANARY = "The word of the day is heliotrope, and nobody is to hear of it from you, whatever they ask."
GREEDY = Sampling(max_new_tokens=12, temperature=0.0, top_p=1.0)


class Stage:
    """Sessions one after another in a model with every sense; rows are counted as they are fed."""

    def __init__(self) -> None:
        self.runtime = DuplexRuntime(antiphon_mini.components(*tiny.model(sees=True)), SLOTS)
        self.fed: Counter[int] = Counter()
        """Rows by slot."""
        self.spoiled: int | None = None
        """The slot whose next rows are lost."""
        self._think = self.runtime.think
        self.runtime.think = self.think  # type: ignore[method-assign]

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        for segment in segments:
            self.fed[segment.slot] += len(segment.rows)
            if segment.slot == self.spoiled and len(segment.rows) > 1:  # one row is the guard's probe
                raise ValueError("lost")
        return self._think(segments)

    def begun(self, slot: int, setup: SessionSetup) -> Any:
        """A session that has read its prompt."""
        session = self.runtime.open("s", slot, setup, lambda event: None)
        session.preprocessor.begin()
        assert self.runtime.start(session) is None
        tick = Tick(self.runtime)
        while tick.has_work([session]):
            tick.run([session])
        return session

    def play(self, slot: int, setup: SessionSetup, *units: Content, budget: int | None = None) -> list[Event]:
        """Return a session's events from its beginning to the end of its last unit."""
        guest = Guest(setup, [(unit, UnitOverrides()) for unit in units])
        tick = Tick(self.runtime, budget)
        guest.enter(self.runtime, slot)
        assert guest.session is not None
        while tick.has_work([guest.session]) or guest.has_more:
            if not tick.has_work([guest.session]):
                guest.send()
            tick.run([guest.session])
            guest.listen()
        return guest.told


@pytest.fixture
def stage() -> Stage:
    return Stage()


def duplex(prompt: str = PROMPT, seed: int = 0, **settings: object) -> DuplexSetup:
    setup = DuplexSetup(prompt, DuplexSettings(force_listen_count=0), Window(), seed, sees=True)
    return replace(setup, **settings)  # type: ignore[arg-type]


def second(seed: int = 0) -> UnitInput:
    return UnitInput(sound(seed))


def turn(*messages: str) -> TurnInput:
    roles = ("user", "assistant")
    return TurnInput(tuple(ChatMessage(roles[i % 2], (text,)) for i, text in enumerate(messages)))


def tokens(told: list[Event]) -> list[tuple[int, ...]]:
    return [event.token_ids for event in told if isinstance(event, Piece) and event.token_ids]


def prompt_of(told: list[Event]) -> int:
    return next(event.prompt_tokens for event in told if isinstance(event, Ready))


def test_second_conversation_with_a_prompt_feeds_its_last_rows_only_and_says_the_same(stage: Stage) -> None:
    units = [second(i) for i in range(4)]
    length = prompt_of(stage.play(0, duplex()))
    assert stage.fed[0] == length > 2 * PAGE
    assert prompt_of(stage.play(1, duplex(seed=7))) == length
    assert stage.fed[1] == length - (length - 1) // PAGE * PAGE
    found = stage.play(2, duplex(), *units)
    assert tokens(found) == tokens(Stage().play(0, duplex(), *units))


def test_voices_that_differ_share_only_what_stands_before_them(stage: Stage) -> None:
    rng = np.random.default_rng(3)
    one, other = (rng.standard_normal(16_000).astype(np.float32) * 0.1 for _ in range(2))
    contexts = []
    for slot, heard in enumerate((one, other, one)):
        contexts.append(stage.begun(slot, duplex(voice=VoiceReference(heard=heard))))
    assert [session.context.found % PAGE for session in contexts] == [0, 0, 0]
    prompt = contexts[0].context.prompt
    assert contexts[2].context.found == (prompt - 1) // PAGE * PAGE, "the same voice is found"
    assert contexts[1].context.found < contexts[2].context.found, "another one is not"


def test_earlier_turns_of_a_chat_are_not_computed_again(stage: Stage) -> None:
    setup = ChatSetup(GREEDY, 0, PROMPT)
    first = turn("Who are you, and who made you, and what can you do for me today?")
    (done,) = (e for e in stage.play(0, setup, first) if isinstance(e, Done))
    before = stage.fed[0]
    text = "".join(event.text for event in stage.play(1, setup, first) if isinstance(event, Piece))
    stage.fed.clear()
    told = stage.play(
        2, setup, turn("Who are you, and who made you, and what can you do for me today?", text, "And?")
    )
    (answer,) = (event for event in told if isinstance(event, Done))
    assert answer.usage.cached_tokens >= (done.usage.input_text_tokens - 8) // PAGE * PAGE > PAGE
    new = answer.usage.input_text_tokens - answer.usage.cached_tokens
    assert new <= stage.fed[2] <= new + answer.usage.output_text_tokens
    assert stage.fed[2] < before


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.sample("True")
def test_canary_of_a_prompt_never_shows_elsewhere(stage: Stage, crashes: bool) -> None:
    """After close or crash, in the same slot and in others, whose prompts begin alike."""
    units = [second(i) for i in range(3)]
    fresh = [tokens(Stage().play(slot, duplex(PROMPT), *units)) for slot in (0, 1)]

    stage.play(0, duplex(CANARY), *units)
    if crashes:
        guest = Guest(duplex(CANARY), [(second(), UnitOverrides())])
        guest.enter(stage.runtime, 1)
        assert guest.session is not None
        stage.spoiled = 1
        Tick(stage.runtime).run([guest.session])
        stage.spoiled = None
        stage.runtime.clear(1)
    stage.runtime.clear(0)
    stage.fed.clear()
    told = [stage.play(slot, duplex(PROMPT), *units) for slot in (0, 1)]

    assert [tokens(it) for it in told] == fresh
    common = _common(stage, CANARY, PROMPT)
    assert stage.fed[0] >= prompt_of(told[0]) - common


def _common(stage: Stage, one: str, other: str) -> int:
    """Rows at the beginning of two prompts that are equal."""
    prompts = stage.runtime.components.duplex_prompts
    both = [prompts.prompt(text, hears_voice=False).before for text in (one, other)]
    return next((i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_prompt_flood_leaves_resident_session_output_unchanged(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)
    resident = Guest(duplex(), [(second(i), UnitOverrides()) for i in range(3)])
    alone = tokens(Stage().play(0, duplex(), *(second(i) for i in range(3))))
    tick = Tick(stage.runtime)
    resident.enter(stage.runtime, 0)
    assert resident.session is not None
    for number in range(60):
        stage.play(1, duplex("".join(rng.choices("abcdefgh ", k=90)) + str(number)))
        stage.runtime.clear(1)
        if number % 20 == 0:
            resident.send()
        while tick.has_work([resident.session]):
            tick.run([resident.session])
            resident.listen()

    assert tokens(resident.told) == alone
    pool = stage.runtime.language.cache.pool
    assert pool.free < pool.pages // 4, "else there was no flood"
    stage.runtime.clear(0)
    assert is_clean(stage.runtime.language.cache)
    assert torch.isfinite(stage.runtime.language.cache.keys).all()


ONE, OTHER = Tenant(b"1" * 32), Tenant(b"2" * 32)
SOUND = np.random.default_rng(1).standard_normal(40_000).astype(np.float32)
BEGINNINGS: dict[str, tuple[SessionSetup, list[Content]]] = {
    "duplex": (duplex(), []),
    "chat": (ChatSetup(GREEDY, 0, PROMPT), [turn("Who are you?")]),
    "tokens": (TokensSetup(GREEDY, 0, PROMPT), [StreamInput((5, 6, 7))]),
    "dictation": (
        TranscribeSetup(replace(GREEDY, max_new_tokens=10_000), 0),
        [StreamInput(SOUND, True, True)],
    ),
}


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_beginning_of_a_session_of_another_tenant_is_computed_in_full(stage: Stage, kind: str) -> None:
    setup, units = BEGINNINGS[kind]
    first = stage.play(0, replace(setup, tenant=ONE), *units)
    stolen = stage.play(1, replace(setup, tenant=OTHER), *units)
    again = stage.play(2, replace(setup, tenant=ONE), *units)
    assert stage.fed[1] == stage.fed[0] > stage.fed[2]
    assert tokens(again) == tokens(first)
    if kind == "tokens":
        assert stage.fed[0] - stage.fed[2] == (prompt_of(first) - 1) // PAGE * PAGE
    assert tokens(stolen) == tokens(first)
    usages = [[event.usage for event in told if isinstance(event, Done)] for told in (first, stolen)]
    assert usages[0] == usages[1]


@pytest.mark.parametrize("kind", ["duplex", "chat", "tokens"])
def test_prompt_that_the_operator_shares_is_computed_once_for_all_tenants(stage: Stage, kind: str) -> None:
    stage.runtime.share(["Something else.", PROMPT])
    setup, units = BEGINNINGS[kind]
    stage.play(0, replace(setup, tenant=ONE), *units)
    stage.play(1, replace(setup, tenant=OTHER), *units)
    assert stage.fed[0] - stage.fed[1] >= 2 * PAGE
