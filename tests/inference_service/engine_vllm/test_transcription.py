"""Transcription with Voxtral Realtime: both engines write down what transformers does."""

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import VoxtralRealtimeForConditionalGeneration as Network

from inference_service.engine_vllm.loading import read_served
from inference_service.engine_vllm.realtime import read_realtime
from inference_service.errors import ConfigurationError
from inference_service.interface.engine import End, Failure, Finish, Piece, Prefilled, Ready
from inference_service.interface.setups import NO_OVERRIDES, StreamInput, UnitOverrides
from inference_service.models.errors import CheckpointError
from tests.inference_service.engine.support.dictation import Sound, cut, noise
from tests.inference_service.engine.support.tiny_voxtral import PROMPT
from tests.inference_service.engine_vllm.support import engines, tiny_realtime
from tests.inference_service.engine_vllm.support.engines import MISSING, Rig, Talker, Unit
from tests.inference_service.families.test_voxtral import FRAME, generated, text_ids
from tests.support.long import long

LIMIT = 95
LONG_LIMIT = 400
BLOCKS = 22
"""Blocks of the cache, of 128 tokens each. A context of `LONG_LIMIT` takes seven, the encoder's included."""
SECOND = noise(9, 1.0)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_realtime.save(tmp_path_factory.mktemp("hearing") / "tiny")


@pytest.fixture(scope="module")
def written(hearing: Path) -> Callable[[Sound], list[int]]:
    """Transcribe with transformers' `generate`: the ids that are text."""
    network = Network.from_pretrained(hearing, attn_implementation="eager").eval()
    return lambda sound: text_ids(generated(network, sound))


@pytest.fixture(scope="module", params=engines.ALL)
def ears(request: pytest.FixtureRequest, hearing: Path) -> Iterator[Rig]:
    with engines.serving(request.param, hearing, LIMIT) as rig:
        yield rig


@pytest.fixture
def writer(ears: Rig) -> Iterator[Talker]:
    talker = ears.transcription()
    assert talker.until(Ready).prompt_tokens == PROMPT
    yield talker
    talker.close()


def hear(
    talker: Talker,
    sound: Sound | None,
    begins: bool = False,
    ends: bool = False,
    overrides: UnitOverrides = NO_OVERRIDES,
) -> Unit:
    number = talker.send(StreamInput(sound, begins, ends), overrides)
    return talker.finish(number)


def utterance(talker: Talker, sound: Sound, longest: int = 20_000) -> list[int]:
    """Hear an utterance in chunks of random lengths; return the ids of its words."""
    ids = list[int]()
    for index, chunk in enumerate(cut(sound, 1, longest)):
        ids += hear(talker, chunk, begins=index == 0).ids
    last = hear(talker, None, ends=True)
    assert (last.done.end, last.done.finish) == (End.TURN, Finish.EOS)
    return ids + last.ids


def test_chunks_of_any_length_say_what_generate_says_and_utterances_begin_clean(
    writer: Talker, written: Callable[[Sound], list[int]]
) -> None:
    for seed, longest in ((5, 9000), (6, 700), (5, 100_000)):
        sound = noise(seed, 2.3)
        assert utterance(writer, sound, longest) == written(sound)


def written_at_once(rig: Rig, sounds: list[Sound], longest: int) -> list[list[int]]:
    """Return what each of several sessions writes that are sent all of their sound at once."""
    talkers, found = [rig.transcription(slot) for slot in range(len(sounds))], []
    for talker, sound in zip(talkers, sounds, strict=True):
        for chunk in (*cut(sound, 2, longest), None):
            talker.session.finalize(talker.send(StreamInput(chunk, ends=chunk is None)))
    for talker in talkers:
        talker.over(talker.units)
        found.append(Unit(talker.events).ids)
        talker.close()
    return found


def test_sessions_at_once_write_as_each_alone(ears: Rig, written: Callable[[Sound], list[int]]) -> None:
    sounds = [noise(seed, 1.5) for seed in range(3)]
    assert written_at_once(ears, sounds, 9000) == [*map(written, sounds)]


def test_cancelled_unit_is_heard_without_a_word_and_the_utterance_goes_on(writer: Talker) -> None:
    first = hear(writer, SECOND, begins=True)
    writer.session.cancel(2)
    cancelled = hear(writer, noise(2, 2.0))
    after = hear(writer, noise(3, 0.8))
    assert first.ids
    assert (cancelled.done.end, cancelled.ids) == (End.CANCELLED, [])
    assert cancelled.done.usage.input_audio_tokens == 25
    assert (after.done.end, after.done.usage.input_audio_tokens) == (End.CHUNK, 10)
    assert after.done.usage.output_text_tokens == 10


def test_cancel_while_words_come_keeps_the_utterance(writer: Talker) -> None:
    number = writer.send(StreamInput(noise(4, 4.0), True))
    writer.until(Piece)
    writer.session.cancel(number)
    said = writer.finish(number)
    assert said.done.end in (End.CANCELLED, End.CHUNK)
    assert said.done.usage.input_audio_tokens >= 49
    assert hear(writer, noise(3, 0.8)).done.usage.input_audio_tokens == 10


def test_close_while_words_come_ends_one_session(ears: Rig, written: Callable[[Sound], list[int]]) -> None:
    first, second = ears.transcription(0), ears.transcription(1)
    first.send(StreamInput(noise(1, 6.0), True))
    first.until(Piece)
    first.close()
    assert utterance(second, SECOND) == written(SECOND)
    second.close()
    again = ears.transcription(0)
    assert utterance(again, SECOND) == written(SECOND)
    again.close()
    if ears.name == "plain":
        assert ears.generator.open == 0


def test_rejected_unit_is_not_heard_and_the_next_begins_anew(writer: Talker) -> None:
    hear(writer, SECOND, begins=True)
    writer.units += 1
    writer.session.prefill(writer.units, StreamInput(noise(2, 1.0)))
    writer.session.reject(writer.units, Failure("PARAMS_INVALID", "No."))
    rejected = writer.finish(writer.units)
    after = hear(writer, noise(3, 1.0))
    assert (rejected.done.end, rejected.ids) == (End.FAILED, [])
    assert after.done.end is End.CHUNK
    assert after.done.usage.input_audio_tokens > PROMPT


def test_most_new_tokens_of_a_unit_are_kept_and_do_not_stick(writer: Talker) -> None:
    few = hear(writer, noise(2, 3.0), begins=True, overrides=UnitOverrides(max_new_tokens=5))
    assert (few.done.finish, few.done.usage.output_text_tokens) == (Finish.LENGTH, 5)
    assert hear(writer, noise(3, 1.6)).done.usage.output_text_tokens == 20


def test_utterance_without_sound_ends_without_the_model(writer: Talker) -> None:
    said = hear(writer, None, begins=True, ends=True)
    assert (said.done.end, said.done.usage.input_audio_tokens) == (End.TURN, 0)


def test_full_context_ends_the_unit_before_vllm(ears: Rig, written: Callable[[Sound], list[int]]) -> None:
    if ears.name == "antiphon":
        pytest.skip("its window slides")
    talker, other = ears.transcription(0), ears.transcription(1)
    said = hear(talker, noise(1, LIMIT * FRAME / 16_000 + 2), begins=True)
    assert (said.done.end, said.done.context_tokens) == (End.CONTEXT_FULL, LIMIT)
    more = hear(talker, SECOND)
    assert more.one(Prefilled).failure.reason == "INPUT_TOO_LONG"
    assert (more.done.end, more.ids) == (End.CONTEXT_FULL, [])
    assert utterance(other, SECOND) == written(SECOND) == utterance(talker, SECOND)
    talker.close()
    other.close()


def test_seed_of_a_unit_is_refused_and_that_of_a_session_repeats(ears: Rig) -> None:
    if ears.name == "antiphon":
        pytest.skip("it takes seeds of units")
    talker = ears.transcription()
    refused = hear(talker, SECOND, begins=True, overrides=UnitOverrides(seed=3)).done.failure
    assert refused is not None
    assert (refused.reason, refused.field) == ("PARAMS_INVALID", "sampling.seed")
    talker.close()


@long
def test_draws_of_vllm_repeat_with_the_seed_of_the_session(hearing: Path) -> None:
    hot = engines.Sampling(1000, temperature=1.5, top_p=1.0)
    said = []
    with engines.serving("vllm", hearing, LIMIT) as rig:
        for seed in (1, 1, 2):
            talker = rig.transcription(sampling=hot, seed=seed)
            said.append(utterance(talker, noise(4, 2.0)))
            talker.close()
    assert said[0] == said[1] != said[2]


@long
def test_utterances_that_fill_the_cache_are_written_as_alone(
    hearing: Path, written: Callable[[Sound], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache holds `SLOTS` contexts and no fourth one: none is dropped in the middle of its sound."""
    engines.limit_cache(monkeypatch, BLOCKS)
    sounds = [noise(seed, 0.08 * (LONG_LIMIT - 50)) for seed in range(engines.SLOTS)]
    with engines.serving("vllm", hearing, LONG_LIMIT) as rig:
        assert written_at_once(rig, sounds, 30_000) == [*map(written, sounds)]


@long
@pytest.mark.skipif(not engines.HAS_VLLM, reason=MISSING)
def test_refused_slots_leave_no_process_of_vllm(hearing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = multiprocessing.active_children()
    engines.limit_cache(monkeypatch, BLOCKS // 2)
    with pytest.raises(ConfigurationError, match="--slots 1"):
        engines.start("vllm", hearing, LONG_LIMIT)
    assert multiprocessing.active_children() == before


@pytest.mark.parametrize("name", ["params.json", "consolidated.safetensors", "tekken.json"])
def test_folder_without_mistrals_layout_is_refused_with_the_file(tmp_path: Path, name: str) -> None:
    folder = tiny_realtime.save(tmp_path)
    read_served(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_realtime(folder)


def test_slots_that_the_cache_has_no_room_for_are_refused(hearing: Path) -> None:
    """An utterance that waits for its next sound keeps its place, so nobody may wait for it."""
    generator = engines.plain_generator(hearing)
    generator.whole_contexts = engines.SLOTS - 1
    with pytest.raises(ConfigurationError, match=f"holds 2 utterances of {LIMIT} tokens .* --slots 2"):
        engines.assemble(hearing, generator, engines.deliver, lambda reason: None)


def test_steps_carry_the_salt_of_the_tenant(ears: Rig) -> None:
    if ears.name != "plain":
        pytest.skip("only transformers' generator tells its requests")
    talker = ears.transcription()
    hear(talker, np.zeros(16_000, np.float32), begins=True, ends=True)
    talker.close()
    assert ears.generator.requests[-1].cache_salt == b"a".hex()
