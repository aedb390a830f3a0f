"""Recorded conversations of the published architecture, from raw sound and pictures to what is said."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from inference_service.engine.batch import speech
from inference_service.engine.batch.draw import TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.families import minicpmo
from inference_service.interface.engine import Done, End, Finalized, Finish, Prefilled
from inference_service.interface.setups import DuplexSettings, Window, WindowMode
from tests.inference_service.engine.support import golden
from tests.inference_service.engine.support.decisions import decide
from tests.inference_service.engine.support.reference import (
    Enter,
    Spoken,
    Visitor,
    Watched,
    checkpoint,
    crowd,
    play,
    runtime,
)
from tests.support.long import seeds

HIDDEN_LIMIT = 5e-5
LOGITS_LIMIT = 1e-4
CONTEXT = Window(WindowMode.CONTEXT, 512, 512, max_units=4, remembered_tokens=24)

ENTER: dict[str, Enter] = {
    "duplex_script": partial(Visitor, name="duplex_script"),
    "duplex_greedy": partial(Visitor, name="duplex_greedy", scripted=False, force_listen_count=0),
    "window_basic": Visitor.windowed,
    "window_context": partial(Visitor, name="window_context", window=CONTEXT),
}


def enter(name: str, *, quirks: bool = True) -> tuple[Visitor, Watched]:
    where = runtime(1, quirks=quirks, limit=1024)
    return ENTER[name](where, 0), where


def check(visitor: Visitor) -> None:
    """Everything that was recorded of a conversation, unit by unit."""
    stored = golden.tensors(visitor.name)
    for unit, said in zip(visitor.recorded, visitor.spoken, strict=True):
        prefix = f"u{unit['unit']:02d}"
        assert outcome(said) == expected(unit, visitor.name), f"{visitor.name}, {prefix}"
        near(said.scores[0], stored[f"{prefix}.pending_logits"], LOGITS_LIMIT)
        if f"{prefix}.step_logits" in stored:
            near(torch.stack(said.scores), stored[f"{prefix}.step_logits"][: len(said.scores)], LOGITS_LIMIT)
        if f"{prefix}.tts_hidden" in stored and said.job:
            near(said.job.hidden, stored[f"{prefix}.tts_hidden"], HIDDEN_LIMIT)


def outcome(said: Spoken) -> dict[str, object]:
    done, closed, running = said.one(Done), said.one(Finalized), said.running
    assert running is not None
    return {
        "decided": said.decided,
        "text_token_ids": running.said if running.job else [],
        "terminator": running.terminator,
        "text": said.text,
        "end": done.end,
        "turn_open": said.turn_open,
        "codes": said.job.codes if said.job else [],
        "may_be_short": said.job.may_be_short if said.job else None,
        "chunks": said.chunks,
        "vocoder_buffer": said.pending_tokens,
        "context": [said.one(Prefilled).context_tokens, done.context_tokens, closed.context_tokens],
        "dropped": closed.dropped_units,
        "memory": said.memory,
    }


def expected(unit: dict[str, Any], name: str) -> dict[str, object]:
    """Return the recorded outcome; a listen is reported even where it lost text."""
    speech, previous = unit["tts"], unit.get("previous_token_ids", [])
    end = End.LISTEN if unit["is_listen"] else End.TURN if unit["end_of_turn"] else End.CHUNK
    marker = len(golden.tokenizer().encode("\n\nprevious: "))
    return {
        "decided": unit["decided"],
        "text_token_ids": unit["text_token_ids"] if speech else [],
        "terminator": unit["terminator"],
        "text": unit["text"],
        "end": end,
        "turn_open": unit["turn_open_after"],
        "codes": speech["tokens"] if speech else [],
        "may_be_short": speech["min_new_tokens"] == 0 if speech else None,
        "chunks": [(chunk["tokens"], chunk["last"]) for chunk in unit["vocoder_calls"]],
        "vocoder_buffer": unit["vocoder_buffer_after"],
        "context": [unit["kv_after_prefill"], unit["kv_after_generate"], unit["kv_after_finalize"]],
        "dropped": dropped_after(unit["unit"], name),
        "memory": previous[marker:],
    }


def dropped_after(unit: int, name: str) -> int:
    if name == "window_context":
        return int(unit >= CONTEXT.max_units)
    return sum(drop["unit"] == unit for drop in golden.recording(name)["drops"])


def near(actual: Tensor, recorded: Tensor, limit: float) -> None:
    torch.testing.assert_close(actual, recorded, atol=limit, rtol=0)


@pytest.mark.parametrize(("name", "quirks"), [*((name, True) for name in ENTER), ("duplex_greedy", False)])
def test_conversation_is_the_recorded_one(name: str, quirks: bool) -> None:
    """A natural conversation is that by our own rules too, without the quirks of the reference."""
    visitor, where = enter(name, quirks=quirks)
    play([visitor], where)
    check(visitor)


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_conversations_among_others_that_come_and_go_are_the_recorded_ones(seed: int) -> None:
    rng = random.Random(seed)
    where = runtime(4, quirks=True, limit=1024)
    coming = rng.sample([*ENTER.values()] * 3, 12)
    stayed = crowd(coming, where, 4, rng)
    assert len(stayed) >= 6
    for visitor in stayed:
        check(visitor)


def test_every_row_fed_and_its_hidden_state_are_the_recorded_ones() -> None:
    visitor, where = enter("duplex_script")
    play([visitor], where)
    where.settle([visitor.talk.context])
    stored = golden.tensors("duplex_script")
    fed = [torch.cat(rows) for rows in zip(*where.fed[0], strict=True)]
    near(fed[0], stored["feed.embeds"], HIDDEN_LIMIT)
    near(fed[1], stored["feed.hidden"], HIDDEN_LIMIT)
    keys, values = where.language.cache.held(0, 0, 309)
    near(keys[1], stored["kv.k1"], HIDDEN_LIMIT)
    near(values[1], stored["kv.v1"], HIDDEN_LIMIT)


def test_context_behind_a_window_that_remembers_is_the_recorded_one() -> None:
    visitor, where = enter("window_context")
    play([visitor], where)
    stored, context = golden.tensors("window_context"), visitor.talk.context
    keys, values = where.language.cache.held(0, 0, context.length)
    # Positions of the recording are moved back at each drop, ours only grow.
    near(where.language.rotate(keys[1], -context.dropped), stored["kv.k1"], HIDDEN_LIMIT)
    near(values[1], stored["kv.v1"], HIDDEN_LIMIT)


@pytest.mark.parametrize("name", ["duplex_script", "duplex_script_clean_tts", "duplex_greedy"])
@pytest.mark.parametrize("at_once", [1, 5])
def test_speech_is_drawn_from_the_recorded_probabilities(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Tensor] = []
    scores: list[Tensor] = []

    def likeliest(draws: speech.CodeDraws, scores: Tensor) -> Tensor:
        (weights,) = weigh(draws, scores)
        drawn.append(weights / weights.sum())
        return torch.nn.functional.one_hot(weights.argmax(), len(weights))[None].float()

    weigh = speech.CodeDraws.weigh
    monkeypatch.setattr(speech.CodeDraws, "weigh", likeliest)
    quirks = name != "duplex_script_clean_tts"
    where = runtime(1, quirks=True, limit=1024)
    assert where.speaker is not None
    where.speaker.at_once = at_once
    visitor = ENTER[name.removesuffix("_clean_tts")](where, 0, speech_temperature=0.8)
    visitor.talk.reference_quirks = quirks
    head = where.components.speech and where.components.speech.head
    assert head is not None
    own = head.logits

    def logits(hidden: Tensor) -> Tensor:
        scores.append(own(hidden))
        return scores[-1].clone()

    monkeypatch.setattr(head, "logits", logits)

    play([visitor], where)

    stored, at = golden.tensors(name), 0
    for unit in golden.recording(name)["units"]:
        said = visitor.spoken[unit["unit"]]
        if said.job is None:
            continue
        count = len(said.job.codes) + (len(said.job.codes) < 25)
        prefix = f"u{unit['unit']:02d}.tts"
        if f"{prefix}.probs" in stored:  # of the clean run, the units that differ
            near(torch.stack(drawn[at : at + count]), stored[f"{prefix}.probs"][:count], HIDDEN_LIMIT)
            near(torch.cat(scores[at : at + count]), stored[f"{prefix}.raw_logits"][:count], LOGITS_LIMIT)
        if f"{prefix}.condition" in stored:
            condition = head.condition(torch.tensor(said.job.tokens, dtype=torch.long), said.job.hidden)
            near(condition, stored[f"{prefix}.condition"], HIDDEN_LIMIT)
        if unit["tts"] is not None:
            assert said.job.codes == unit["tts"]["tokens"]
        at += -(-count // at_once) * at_once
    assert at == len(drawn) == len(scores)


def test_script_by_our_own_rules_speaks_on_clean_contexts_and_loses_nothing_that_was_said() -> None:
    """After a forced listen, in units 8 and 11, and of unit 9 with its listen behind the end of a turn."""
    visitor, where = enter("duplex_script", quirks=False)
    play([visitor], where)

    ninth, recorded = visitor.spoken[9], visitor.recorded[9]
    assert (ninth.one(Done).end, ninth.one(Done).finish, ninth.text) == (End.TURN, Finish.EOS, "e")
    assert ninth.job is not None
    assert (ninth.job.may_be_short, len(ninth.job.tokens)) == (True, len(recorded["decided"][1:-1]))
    assert ninth.pending_tokens == [4218] * 3
    assert ninth.turn_open == recorded["turn_open_after"]
    assert ninth.one(Finalized).context_tokens == recorded["kv_after_finalize"]
    sound = {"chunks", "vocoder_buffer"}  # recorded with the codes that are spoken on a stale context
    for unit, said in zip(visitor.recorded, visitor.spoken, strict=True):
        if said is not ninth:
            told, wanted = outcome(said), expected(unit | {"tts": unit["speech"]}, visitor.name)
            assert {key: told[key] for key in told.keys() - sound} == {
                key: wanted[key] for key in wanted.keys() - sound
            }, unit["unit"]


def test_first_unit_may_show_pictures_alone() -> None:
    """The reference's next unit fails, and the first sound that it hears loses a frame."""
    visitor, where = enter("duplex_script", quirks=False)
    visitor.recorded = [visitor.recorded[unit] for unit in (9, 1, 2)]
    play([visitor], where)
    assert [said.one(Prefilled).usage.input_audio_tokens for said in visitor.spoken] == [0, 10, 10]
    assert [said.one(Done).end for said in visitor.spoken] == [End.LISTEN, End.LISTEN, End.CHUNK]


def test_a_unit_never_decides_to_pause() -> None:
    """The reference has a rule against two pauses in a row that nothing can meet, as a pause is forbidden."""
    special = golden.tokenizer().special
    forbidden = minicpmo.components(checkpoint(), None).forbidden
    scores = torch.zeros(768)
    scores[special.tts_pad] = 100.0
    sampler = TextSampler(special, torch.tensor(forbidden), Noise(0))
    decided = decide(sampler, scores, DuplexSettings(greedy=True))
    assert decided != special.tts_pad
    assert list(forbidden) == sorted(golden.recording("decode_rules")["forbidden_token_ids"])
