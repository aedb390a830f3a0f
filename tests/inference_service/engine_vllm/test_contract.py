"""Test the contract of every engine: token streams, chats, cancels, refusals, ends of sessions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_service.checkpoints.causal import read_folder
from inference_service.interface.engine import (
    Closed,
    End,
    Failure,
    Finalized,
    Finish,
    Piece,
    Prefilled,
    Ready,
    SessionFailed,
    Ticked,
)
from inference_service.interface.setups import NO_OVERRIDES, StreamInput
from inference_service.models.chat_template import Message
from tests.inference_service.engine_vllm.support.engines import GREEDY, LIMIT, Rig, Talker, turn

A, B, C, D, E, F, G = 5, 17, 42, 71, 99, 123, 200


@pytest.fixture
def stream(rig: Rig) -> Iterator[Talker]:
    talker = rig.stream()
    talker.until(Ready)
    yield talker
    talker.close()


@pytest.fixture
def chat(rig: Rig) -> Iterator[Talker]:
    talker = rig.chat()
    talker.until(Ready)
    yield talker
    talker.close()


def test_stream_last_token_is_discarded(stream: Talker, greedy: Any) -> None:
    first = stream.chunk([A, B, C], max_new_tokens=2)
    second = stream.chunk([D, E], max_new_tokens=2)
    third = stream.chunk([F, G], max_new_tokens=1)
    x, y = greedy([A, B, C], 2)
    p, q = greedy([A, B, C, x, D, E], 2)
    assert (first.ids, second.ids) == ([x, y], [p, q])
    assert third.ids == greedy([A, B, C, x, D, E, p, F, G], 1)
    closed = [unit.one(Finalized) for unit in (first, second, third)]
    assert [it.discarded_tokens for it in closed] == [1, 1, 1]
    assert [it.context_tokens for it in closed] == [4, 7, 9]
    assert second.one(Prefilled).context_tokens == 6
    assert (second.done.end, second.done.finish) == (End.CHUNK, Finish.LENGTH)


def test_stream_kept_token_joins_the_context(stream: Talker, greedy: Any) -> None:
    first = stream.chunk([A, B, C], max_new_tokens=2, keep=True)
    second = stream.chunk([D, E], max_new_tokens=2)
    x, y = greedy([A, B, C], 2)
    assert (first.one(Finalized).discarded_tokens, first.one(Finalized).context_tokens) == (0, 5)
    assert second.ids == greedy([A, B, C, x, y, D, E], 2)
    assert second.done.usage.input_text_tokens == 3


def test_stream_begun_again_drops_the_context(rig: Rig, folder: Path, greedy: Any) -> None:
    talker = rig.stream(system_prompt="think")
    prompt = talker.until(Ready).prompt_tokens
    talker.chunk([A, B, C])
    said = talker.chunk([D, E], begins=True)
    assert said.one(Prefilled).context_tokens == prompt + 2
    assert said.ids == greedy([*read_folder(folder).tokenizer.encode("think"), D, E], 4)
    talker.close()


def test_stream_stop_id_ends_the_chunk(stream: Talker, greedy: Any) -> None:
    x, y = greedy([A, B, C], 2)
    assert x != y
    said = stream.chunk([A, B, C], stop_token_ids=(y,))
    assert (said.ids, said.done.end, said.done.finish) == ([x, y], End.CHUNK, Finish.STOP)
    assert said.one(Finalized).discarded_tokens == 1


def test_stream_end_of_sequence_ends_the_chunk(stream: Talker, folder: Path, greedy: Any) -> None:
    (end,) = read_folder(folder).ends
    said = stream.chunk([A, B, C], ignore_eos=False)
    expected = greedy([A, B, C], 4)
    assert said.ids == (expected[: expected.index(end) + 1] if end in expected else expected)


def test_stream_chunk_that_does_not_fit_is_refused(stream: Talker, greedy: Any) -> None:
    stream.chunk([A, B, C], max_new_tokens=1)
    refused = stream.chunk([D] * LIMIT)
    assert refused.one(Prefilled).failure.reason == "INPUT_TOO_LONG"
    assert refused.done.end is End.FAILED
    assert refused.one(Finalized).context_tokens == 3
    assert stream.chunk([D, E], max_new_tokens=2).ids == greedy([A, B, C, D, E], 2)


def test_stream_full_context_ends_the_chunk(stream: Talker) -> None:
    said = stream.chunk([A] * (LIMIT - 2), max_new_tokens=9)
    assert (said.done.end, said.done.finish) == (End.CONTEXT_FULL, Finish.LENGTH)
    assert len(said.ids) == 3
    assert said.done.context_tokens == LIMIT
    more = stream.chunk([B])
    assert more.one(Prefilled).failure.reason == "INPUT_TOO_LONG"
    assert more.done.end is End.CONTEXT_FULL


def test_stream_whole_context_of_input_is_continued_by_one_token(stream: Talker) -> None:
    said = stream.chunk([A] * LIMIT, max_new_tokens=9)
    assert (said.done.end, len(said.ids)) == (End.CONTEXT_FULL, 1)


def test_stream_rejected_chunk_is_taken_back(stream: Talker, greedy: Any) -> None:
    stream.chunk([A, B, C], max_new_tokens=1)
    stream.units += 1
    stream.session.prefill(2, StreamInput((D, D, D)))
    stream.session.reject(2, Failure("PARAMS_INVALID", "No."))
    rejected = stream.finish(2)
    assert (rejected.done.end, rejected.done.failure) == (End.FAILED, Failure("PARAMS_INVALID", "No."))
    assert stream.chunk([D, E], max_new_tokens=2).ids == greedy([A, B, C, D, E], 2)


def test_stream_without_a_chunk_is_answered(stream: Talker) -> None:
    number = stream.send(StreamInput(None, ends=True))
    said = stream.finish(number)
    assert (said.done.end, said.ids) == (End.TURN, [])


def test_stream_chunks_written_ahead_run_in_order(stream: Talker, greedy: Any) -> None:
    for ids in ([A, B], [C], [D]):
        number = stream.send(StreamInput(tuple(ids)))
        stream.session.finalize(number)
    context: list[int] = []
    for number, ids in enumerate(([A, B], [C], [D]), 1):
        expected = greedy([*context, *ids], 4)
        assert stream.over(number).ids == expected
        context += [*ids, *expected[:-1]]


def test_stream_prompt_that_leaves_no_room_fails_the_session(rig: Rig) -> None:
    talker = rig.stream(system_prompt="x" * LIMIT)
    assert talker.until(SessionFailed).reason == "CONFIG_INVALID"
    talker.close()


def test_stream_text_and_ids_agree(stream: Talker, folder: Path) -> None:
    ids = read_folder(folder).tokenizer.encode("answer me")
    said = stream.chunk("answer me", max_new_tokens=3)
    assert said.ids == stream.chunk(ids, begins=True, max_new_tokens=3).ids


def prompt_of(folder: Path, text: str) -> list[int]:
    template = read_folder(folder).template
    assert template is not None
    (ids,) = template.prompt([Message("user", [text])])
    assert isinstance(ids, list)
    return ids


def test_chat_answers_as_generate_does(chat: Talker, folder: Path, greedy: Any) -> None:
    prompt = prompt_of(folder, "Hello!")
    said = chat.turn("Hello!", max_new_tokens=6)
    decoded = read_folder(folder).tokenizer.decode(greedy(prompt, 6))
    assert said.text == decoded.rstrip("\ufffd")
    assert said.done.usage.input_text_tokens == len(prompt)
    assert said.done.usage.output_text_tokens == 6
    assert (said.done.end, said.done.finish) == (End.TURN, Finish.LENGTH)


def test_chat_turns_are_independent(chat: Talker) -> None:
    first = chat.turn("Hello!", max_new_tokens=6)
    chat.turn("Something else entirely", max_new_tokens=6)
    again = chat.turn("Hello!", max_new_tokens=6)
    assert first.text == again.text


def test_chat_stop_string_ends_the_answer(chat: Talker) -> None:
    whole = chat.turn("Hello!", max_new_tokens=12).text
    assert len(whole) > 2, "the model says too little to be stopped"
    stop = whole[1:3]
    said = chat.turn("Hello!", max_new_tokens=12, stop=(stop,))
    assert said.text == whole[: whole.index(stop)]
    assert said.done.finish is Finish.STOP


def test_chat_conversation_that_is_too_long_is_refused(chat: Talker) -> None:
    said = chat.turn("x" * LIMIT)
    failure = said.one(Prefilled).failure
    assert (failure.reason, failure.field) == ("INPUT_TOO_LONG", "turn.messages")
    assert said.done.end is End.FAILED
    assert chat.turn("x", max_new_tokens=1).done.end is End.TURN


def test_chat_settings_without_effect_are_reported(chat: Talker) -> None:
    number = chat.send(turn("Hi", omni_mode=True, language="de"))
    ignored = chat.finish(number).one(Prefilled).ignored_fields
    assert {"turn.omni_mode", "turn.tts.language"} <= {*ignored}


LONG = replace(GREEDY, max_new_tokens=80)


def test_cancel_before_generate_ends_the_unit_without_a_token(stream: Talker) -> None:
    stream.session.prefill(1, StreamInput((A, B)))
    stream.until(Prefilled, 1)
    stream.session.cancel(1)
    stream.session.generate(1, False, NO_OVERRIDES)
    stream.session.finalize(1)
    stream.units = 1
    said = stream.over(1)
    assert (said.done.end, said.ids, said.done.context_tokens) == (End.CANCELLED, [], 2)


def test_cancel_during_generation_keeps_emitted_tokens(rig: Rig, greedy: Any) -> None:
    talker = rig.stream(sampling=LONG)
    number = talker.send(StreamInput((A, B, C)))
    talker.until(Piece)
    talker.session.cancel(number)
    said = talker.finish(number)
    assert said.done.end in (End.CANCELLED, End.CHUNK)
    if said.done.end is End.CANCELLED:
        assert said.done.context_tokens == 3 + len(said.ids)
        expected = greedy([A, B, C, *said.ids, D], 2)
        assert talker.chunk([D], max_new_tokens=2).ids == expected
    talker.close()


def test_cancel_of_units_to_come_ends_them_too(stream: Talker) -> None:
    stream.session.cancel(2)
    assert [stream.chunk([A]).done.end for _ in range(3)] == [End.CANCELLED, End.CANCELLED, End.CHUNK]


def test_close_while_tokens_come_ends_the_session_alone(rig: Rig, greedy: Any) -> None:
    first, second = rig.stream(0, LONG), rig.stream(1)
    first.send(StreamInput((A, B, C)))
    first.until(Piece)
    first.session.close()
    first.session.close()
    first.until(Closed)
    assert second.chunk([A, B, C]).ids == greedy([A, B, C], 4)
    assert first.told.empty()
    second.close()


def test_close_before_the_session_has_begun_is_answered(rig: Rig) -> None:
    talker = rig.chat()
    talker.close()


def test_session_in_a_used_slot_finds_nothing_of_the_one_before(rig: Rig, greedy: Any) -> None:
    for _ in range(2):
        talker = rig.stream(2)
        assert talker.chunk([A, B, C]).ids == greedy([A, B, C], 4)
        talker.close()


def test_concurrent_sessions_answer_as_when_alone(rig: Rig, greedy: Any) -> None:
    prompts = ([A, B, C], [D, E], [F])
    talkers = [rig.stream(slot) for slot in range(3)]
    numbers = [it.send(StreamInput(tuple(ids))) for it, ids in zip(talkers, prompts, strict=True)]
    for talker, number, ids in zip(talkers, numbers, prompts, strict=True):
        assert talker.finish(number).ids == greedy(ids, 4)
        talker.close()


def test_same_seed_says_the_same(rig: Rig) -> None:
    hot = replace(GREEDY, temperature=1.5, max_new_tokens=12)
    said = []
    for seed in (1, 1, 2):
        talker = rig.stream(sampling=hot, seed=seed)
        said.append(talker.chunk([A, B, C]).ids)
        talker.close()
    assert said[0] == said[1] != said[2]


def test_ticks_are_reported(rig: Rig, stream: Talker) -> None:
    ticks: list[Ticked] = []
    rig.engine.watch(ticks.extend)
    stream.chunk([A, B, C])
    stream.chunk([A, B, C])
    assert ticks
    assert all(it.ended >= it.started and it.sessions and it.tokens for it in ticks)


def test_engine_info_has_name_and_limits(rig: Rig) -> None:
    info = rig.engine.info
    assert info.engine.name == ("antiphon" if rig.name == "antiphon" else "vllm")
    assert info.context_limit == LIMIT
    assert rig.engine.busy_since is None or rig.engine.busy_since > 0
    assert rig.engine.occupancy().kv_capacity_tokens >= LIMIT
