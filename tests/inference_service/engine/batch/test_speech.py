"""Speech codes of units: how many, which, and that nobody is disturbed by anybody."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention

from inference_service.device import flex
from inference_service.device.paged import AttentionBackend
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import CodeDraws, Speaker, SpeechJob, SpeechState
from inference_service.models.speech_head import SpeechHead
from tests.inference_service.engine.support import tiny
from tests.support.long import examples

CAPACITY = 256
RULES = {"repetition_penalty": 1.3, "repetition_window": 6, "top_k": 9}
HIDDEN = 32


class Hasty(SpeechHead):
    """Always wants to end."""

    wish = 100.0

    def logits(self, hidden: Tensor) -> Tensor:
        scores = super().logits(hidden)
        scores[..., self.config.end_code] = self.wish
        return scores


class Patient(Hasty):
    """Never wants to end."""

    wish = -100.0


def speaker(kind: type[SpeechHead] = SpeechHead, *, at_once: int = 5, **changes: float) -> Speaker:
    built, _, config = tiny.model()
    head = kind(replace(config.speech, **changes), HIDDEN, 768).eval()  # type: ignore[arg-type]
    head.load_state_dict(built.tts.state_dict())
    for parameter in head.parameters():
        if parameter.dim() > 1:
            parameter.mul_(12)  # enough for what was said before to matter
    return Speaker(head, 4, CAPACITY, at_once)


def state(slot: int = 0, seed: int = 0) -> SpeechState:
    return SpeechState(slot, Noise(seed))


def job(of: SpeechState, words: int, *, may_be_short: bool = False, seed: int = 0) -> SpeechJob:
    generator = torch.Generator().manual_seed(seed)
    return SpeechJob(
        of,
        torch.randint(700, (words,), generator=generator).tolist(),
        torch.randn(words, HIDDEN, generator=generator),
        may_be_short=may_be_short,
        temperature=0.8,
        noise=of.noise,
    )


def run(by: Speaker, one: SpeechJob) -> list[int]:
    while not one.finished:
        by.step([one])
    return one.codes


@pytest.mark.parametrize("kind", [SpeechHead, Hasty, Patient])
def test_middle_unit_has_exactly_a_second_of_codes(kind: type[SpeechHead]) -> None:
    by, voice = speaker(kind), state()
    said = [run(by, job(voice, words)) for words in (3, 0, 5)]
    assert [len(codes) for codes in said] == [25, 25, 25]
    assert {code for codes in said for code in codes} <= set(range(tiny.CODES))


def test_first_and_last_unit_end_when_the_head_wants_within_a_second() -> None:
    assert run(speaker(Hasty), job(state(), 3, may_be_short=True)) == []
    assert len(run(speaker(Patient), job(state(), 3, may_be_short=True))) == 25
    by = speaker()
    lengths = {len(run(by, job(state(seed=seed), 3, may_be_short=True, seed=seed))) for seed in range(30)}
    assert lengths <= set(range(26))
    assert len(lengths) > 1


def test_unit_goes_on_from_the_codes_of_the_one_before() -> None:
    by = speaker()
    after = set()
    for seed in range(4):
        voice = state(0)
        run(by, job(voice, 3, seed=seed))
        voice.noise = Noise(9)
        after.add(tuple(run(by, job(voice, 2, seed=5))))
    assert len(after) > 1


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
    used.noise, fresh.noise = Noise(5), Noise(5)
    assert run(by, job(used, 4, seed=2)) == run(by, job(fresh, 4, seed=2))


def test_turn_that_outgrows_its_slot_goes_on_from_a_clean_one() -> None:
    by, voice = speaker(), state()
    for unit in range(12):
        assert len(run(by, job(voice, 10, seed=unit))) == 25
        assert voice.length <= CAPACITY


def crowd(
    by: Speaker, rng: random.Random, begin: Callable[[int], list[SpeechJob]]
) -> dict[int, list[list[int]]]:
    """Run each slot's units in turn, with a random choice of slots in each step."""
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
@pytest.mark.sample("0")
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
    sick.state.noise = Noise(0)
    assert run(by, job(sick.state, 3, seed=1)) == sound.codes


def turn(by: Speaker, slot: int, temperature: float = 0.8) -> list[list[int]]:
    """The units of a turn that may end early in its first and last one."""
    voice, said = state(slot, seed=slot), []
    for unit in range(4):
        one = job(voice, slot + 2, may_be_short=unit in (0, 3), seed=10 * slot + unit)
        one.temperature = temperature
        said.append(run(by, one))
    assert voice.noise.drawn == sum(len(codes) + (len(codes) < 25) for codes in said)
    return said


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_number_of_codes_per_step_changes_no_code(temperature: float) -> None:
    by = speaker(**RULES)
    said = []
    for by.at_once in (1, 5, 7, 40):
        said.append(turn(by, 2, temperature))
    assert said == said[:1] * 4
    assert all(len(codes) == 25 for codes in said[0][1:3])


def test_codes_of_a_step_come_to_the_host_once() -> None:
    by, downloads = speaker(), list[int]()
    said = CodeDraws.said

    def counted(draws: CodeDraws) -> list[list[int]]:
        downloads.append(len(draws._chosen))
        return said(draws)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CodeDraws, "said", counted)
        run(by, job(state(), 3))
    assert downloads == [5] * 5


def test_a_step_that_was_not_taken_has_changed_nothing() -> None:
    by, undisturbed = speaker(), job(state(), 3)
    expected = run(speaker(), undisturbed)
    one = job(state(), 3)
    while not one.finished:
        by.forward([one])
        by.forward([one, job(state(1), 5)])
        by.step([one])
    assert one.codes == expected
    assert one.state.noise.drawn == undisturbed.state.noise.drawn


class Sick(SpeechHead):
    """Its scores are no numbers any more for whoever is in the second row, from the eighth code on."""

    def logits(self, hidden: Tensor) -> Tensor:
        scores = super().logits(hidden)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 7 and len(scores) > 1:
            scores[1] = torch.nan
        return scores


def test_a_unit_that_is_poisoned_in_the_middle_of_a_step_ends_there_and_alone() -> None:
    alone = {slot: run(speaker(), job(state(slot, seed=slot), 3, seed=slot)) for slot in range(3)}
    by = speaker(Sick)
    jobs = [job(state(slot, seed=slot), 3, seed=slot) for slot in range(3)]
    by.step(jobs)
    by.step(jobs)
    assert [one.poisoned for one in jobs] == [False, True, False]
    assert jobs[1].codes == alone[1][:7]
    assert jobs[1].state.noise.drawn == 7
    for slot in (0, 2):
        assert run(by, jobs[slot]) == alone[slot]


def plainly(scores: list[float], said: list[int], uniform: float, top_k: int, penalty: float) -> int:
    """A code over plain lists: penalised for each time it was said, of the best `top_k`, in order of id."""
    row = np.array(scores, np.float32)
    for code, times in Counter(said).items():
        by = np.float32(penalty) ** np.float32(times)
        row[code] = row[code] / by if row[code] > 0 else row[code] * by
    least = sorted(row, reverse=True)[min(top_k, len(row)) - 1]
    weights = np.where(row >= least, np.exp((row - row.max()) / np.float32(0.8)), 0)
    return int((np.cumsum(weights) <= uniform * weights.sum()).sum())


@settings(deadline=None, max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32),
    said=st.lists(st.lists(st.integers(0, 6), max_size=24), min_size=1, max_size=4),
    top_k=st.sampled_from([1, 3, 10, 100]),
    penalty=st.sampled_from([1.0, 1.05, 2.0]),
)
def test_codes_of_all_rows_are_what_each_draws_by_itself(
    seed: int, said: list[list[int]], top_k: int, penalty: float
) -> None:
    config = replace(tiny.model()[2].speech, top_k=top_k, repetition_penalty=penalty)
    rng = np.random.default_rng(seed)
    shape = (len(said), tiny.CODES + 1)
    scores = rng.normal(size=shape) if seed % 2 else rng.integers(-1, 2, shape).astype(np.float64)
    jobs = [job(state(slot % 4, seed=seed + slot), 2, may_be_short=True) for slot in range(len(said))]
    for one, codes in zip(jobs, said, strict=True):
        one.codes = list(codes)
    draws = CodeDraws(config, jobs, 1, torch.device("cpu"))
    draws.say(torch.tensor(scores, dtype=torch.float32))
    window = config.repetition_window
    for one, row, (code,) in zip(jobs, scores, draws.said(), strict=True):
        assert code == plainly(row.tolist(), one.codes[-window:], one.noise.ahead(1)[0], top_k, penalty)


@pytest.fixture(params=["gathered", "flex"])
def regional(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Speaker:
    """As on a GPU: the codes of a step behind the first one are one region."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    backend = (
        AttentionBackend("flex", "", flex.over_contexts, all_rows=True) if request.param == "flex" else None
    )
    by = speaker(**RULES)
    return Speaker(by.head, 4, CAPACITY, 25, in_steps=True, backend=backend)


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.sample("gathered-0.8")
def test_codes_of_a_region_are_those_of_single_steps(regional: Speaker, temperature: float) -> None:
    by = speaker(at_once=1, **RULES)
    for slot in (2, 0, 3):
        assert turn(regional, slot, temperature) == turn(by, slot, temperature)
    assert set(regional._loops) == {(1, 24)}


@torch.inference_mode()
@pytest.mark.sample("gathered")
def test_region_of_more_jobs_than_there_are_draws_the_same_for_each(regional: Speaker) -> None:
    by = speaker(at_once=1, **RULES)
    wanted = [run(by, job(state(slot, slot), slot + 2, seed=slot)) for slot in range(3)]
    jobs = [job(state(slot, slot), slot + 2, seed=slot) for slot in range(3)]
    regional.step(jobs)
    assert [one.codes for one in jobs] == wanted
    assert set(regional._loops) == {(4, 24)}


@torch.inference_mode()
@pytest.mark.sample("gathered")
def test_regions_are_made_at_the_start_for_each_number_of_jobs(regional: Speaker) -> None:
    regional.capture()
    made = set(regional._loops)
    regional.step([job(state(slot, slot), 3) for slot in range(3)])
    assert made == {(size, 24) for size in (1, 2, 4)}
    assert set(regional._loops) == made


@torch.inference_mode()
def test_poisoned_job_of_a_region_ends_alone(regional: Speaker) -> None:
    if regional.decoder.backend is not None and regional.decoder.backend.name == "flex":
        pytest.skip("eagerly, FlexAttention multiplies what it masks by zero; kernels read own pages alone")
    sound, bad = job(state(0, 0), 3), job(state(1, 1), 3)
    bad.hidden = torch.full_like(bad.hidden, torch.nan)
    regional.step([sound, bad])
    assert bad.poisoned
    by = speaker(at_once=1, **RULES)
    assert sound.codes == run(by, job(state(0, 0), 3))
