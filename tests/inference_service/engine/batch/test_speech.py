"""Speech codes of units: how many, which, and that nobody is disturbed by anybody."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inference_service.engine.batch.speech import Speaker, SpeechJob, SpeechState
from inference_service.models.speech_head import SpeechHead
from tests.inference_service.engine.support import tiny

CAPACITY = 256
HIDDEN = 32


class Hasty(SpeechHead):
    """Always wants to end."""

    def logits(self, hidden: Tensor) -> Tensor:
        scores = super().logits(hidden)
        scores[..., self.config.end_code] = 100.0
        return scores


class Patient(SpeechHead):
    """Never wants to end."""

    def logits(self, hidden: Tensor) -> Tensor:
        scores = super().logits(hidden)
        scores[..., self.config.end_code] = -100.0
        return scores


def speaker(kind: type[SpeechHead] = SpeechHead, **changes: float) -> Speaker:
    built, _, config = tiny.model()
    head = kind(replace(config.speech, **changes), HIDDEN, 768).eval()  # type: ignore[arg-type]
    head.load_state_dict(built.tts.state_dict())
    for parameter in head.parameters():
        if parameter.dim() > 1:
            parameter.mul_(12)  # enough for what was said before to matter
    return Speaker(head, 4, CAPACITY)


def state(slot: int = 0, seed: int = 0) -> SpeechState:
    return SpeechState(slot, torch.Generator().manual_seed(seed))


def job(of: SpeechState, words: int, *, may_be_short: bool = False, seed: int = 0) -> SpeechJob:
    generator = torch.Generator().manual_seed(seed)
    return SpeechJob(
        of,
        torch.randint(700, (words,), generator=generator).tolist(),
        torch.randn(words, HIDDEN, generator=generator),
        may_be_short=may_be_short,
        temperature=0.8,
        generator=of.generator,
    )


def run(by: Speaker, one: SpeechJob) -> list[int]:
    while not one.finished:
        by.step([one])
    return one.codes


@pytest.mark.parametrize("kind", [SpeechHead, Hasty, Patient])
def test_middle_unit_has_exactly_a_second_of_codes(kind: type[SpeechHead]) -> None:
    by, voice = speaker(kind), state()

    lengths = [len(run(by, job(voice, words))) for words in (3, 0, 5)]

    assert lengths == [25, 25, 25]


def test_first_and_last_unit_end_when_the_head_wants() -> None:
    assert run(speaker(Hasty), job(state(), 3, may_be_short=True)) == []
    assert len(run(speaker(Patient), job(state(), 3, may_be_short=True))) == 25


def test_first_unit_has_at_most_a_second_of_codes() -> None:
    by = speaker()

    lengths = {len(run(by, job(state(seed=seed), 3, may_be_short=True, seed=seed))) for seed in range(30)}

    assert lengths <= set(range(26))
    assert len(lengths) > 1


def test_codes_are_of_the_codebook() -> None:
    by = speaker()

    assert set(run(by, job(state(), 3))) <= set(range(tiny.CODES))


def test_unit_goes_on_from_the_codes_of_the_one_before() -> None:
    by = speaker()
    one, other = state(0), state(1)
    run(by, job(one, 3, seed=1))
    run(by, job(other, 3, seed=2))

    after = [run(by, job(voice, 2, seed=3)) for voice in (one, other)]

    assert after[0] != after[1]


def test_positions_cover_condition_and_every_code() -> None:
    by, voice = speaker(), state()

    run(by, job(voice, 3))
    assert (voice.length, len(voice.unfed)) == (3 + 1 + 24, 1)

    run(by, job(voice, 2))
    assert voice.length + len(voice.unfed) == 4 + 25 + 3 + 25


def test_new_turn_speaks_as_if_it_were_the_first() -> None:
    by = speaker()
    used, fresh = state(0), state(1)
    run(by, job(used, 3, seed=1))
    used.end_turn()
    used.generator.manual_seed(5)
    fresh.generator.manual_seed(5)

    assert run(by, job(used, 4, seed=2)) == run(by, job(fresh, 4, seed=2))


def test_turn_that_outgrows_its_slot_goes_on_from_a_clean_one() -> None:
    by, voice = speaker(), state()

    for unit in range(12):
        assert len(run(by, job(voice, 10, seed=unit))) == 25
        assert voice.length <= CAPACITY


def crowd(
    by: Speaker, rng: random.Random, begin: Callable[[int], list[SpeechJob]]
) -> dict[int, list[list[int]]]:
    """Everybody's units in turn; who takes part in a step is random."""
    waiting = {slot: begin(slot) for slot in range(4)}
    said: dict[int, list[list[int]]] = {slot: [] for slot in waiting}
    while any(waiting.values()):
        active = [slot for slot, jobs in waiting.items() if jobs]
        chosen = rng.sample(active, rng.randint(1, len(active)))
        by.step([waiting[slot][0] for slot in chosen])
        for slot in chosen:
            if waiting[slot][0].finished:
                said[slot].append(waiting[slot].pop(0).codes)
    return said


@pytest.mark.parametrize("seed", range(3))
def test_batched_codes_equal_each_alone(seed: int) -> None:
    def jobs(slot: int) -> list[SpeechJob]:
        voice = state(slot, seed=slot)
        return [job(voice, slot + 1, may_be_short=unit == 0, seed=10 * slot + unit) for unit in range(3)]

    together = crowd(speaker(), random.Random(seed), jobs)

    alone = speaker()
    assert together == {slot: [run(alone, one) for one in jobs(slot)] for slot in range(4)}


def test_poisoned_unit_ends_alone() -> None:
    by = speaker()
    sound, sick = job(state(0), 3, seed=1), job(state(1), 3, seed=2)
    sick.hidden[1] = torch.nan

    by.step([sound, sick])
    assert sick.finished
    assert sick.poisoned
    assert run(by, sound) == run(speaker(), job(state(0), 3, seed=1))

    sick.state.end_turn()
    sick.state.generator.manual_seed(0)
    assert run(by, job(sick.state, 3, seed=1)) == sound.codes


def test_code_said_again_and_again_becomes_less_likely() -> None:
    plain, penalised = (speaker(Patient, repetition_penalty=penalty) for penalty in (1.0, 1.05))

    def repeats(by: Speaker) -> int:
        one = job(state(), 3)
        one.temperature = 0.0
        said = run(by, one)
        return len(said) - len(set(said))

    assert repeats(penalised) < repeats(plain)
