"""Streaming input: a sticky context that grows by chunks, at the level of tokens and of rows fed."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_service.checkpoints.causal import CausalCheckpoint
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import End, Failure, Finish, Piece
from inference_service.interface.setups import Mode, StreamInput, TokensSetup, UnitOverrides
from tests.inference_service.engine.support import guests, streaming, tiny, tiny_causal
from tests.inference_service.engine.support.streaming import GREEDY, Chunked, Player, Stage, most

A, B, C, D, E, F, G = 5, 17, 42, 71, 99, 123, 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_causal.save(tmp_path_factory.mktemp("causal") / "tiny")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> CausalCheckpoint:
    """Without an end of sequence: tests that want one name it."""
    return replace(streaming.load(folder), ends=frozenset())


@pytest.fixture(scope="module")
def greedy(folder: Path) -> Any:
    return tiny_causal.continued(folder, ends=False)


@pytest.fixture
def stage(checkpoint: CausalCheckpoint) -> Stage:
    return Stage(checkpoint)


def play(
    player: Player, chunks: list[tuple[list[int], int]], *, is_early: bool, keep: bool = False
) -> list[Chunked]:
    """Chunks with the tokens each may add; early ones are all sent before the first is run."""
    numbers = []
    for ids, count in chunks:
        numbers.append(player.send(ids, overrides=most(count), keep=keep))
        if not is_early:
            player.stage.run()
    player.stage.run()
    return [player.said(number) for number in numbers]


@pytest.mark.parametrize("is_early", [True, False], ids=["early", "late"])
def test_the_fold_of_the_picture(stage: Stage, greedy: Any, is_early: bool) -> None:
    """Context A B C, output X Y; the chunk D E makes it A B C X D E, of which four were computed before."""
    player = stage.open()
    first, second, third = play(player, [([A, B, C], 2), ([D, E], 2), ([F, G], 1)], is_early=is_early)
    x, y = greedy([A, B, C], 2)
    assert first.ids == [x, y]
    assert (second.done.usage.cached_tokens, second.prefilled.context_tokens) == (4, 6)
    p, q = greedy([A, B, C, x, D, E], 2)
    assert second.ids == [p, q]
    assert third.ids == greedy([A, B, C, x, D, E, p, F, G], 1)
    assert [said.closed.discarded_tokens for said in (first, second, third)] == [1, 1, 1]
    assert [said.closed.context_tokens for said in (first, second, third)] == [4, 7, 9]


@pytest.mark.parametrize("is_early", [True, False], ids=["early", "late"])
def test_a_token_that_is_kept_is_fed_with_the_next_chunk(stage: Stage, greedy: Any, is_early: bool) -> None:
    player = stage.open()
    first, second = play(player, [([A, B, C], 2), ([D, E], 2)], is_early=is_early, keep=True)
    x, y = greedy([A, B, C], 2)
    assert (first.closed.discarded_tokens, first.closed.context_tokens) == (0, 5)
    assert second.ids == greedy([A, B, C, x, y, D, E], 2)
    assert second.done.usage.input_text_tokens == 3
    assert stage.runtime.forwards == [{0: 3}, {0: 1}, {0: 3}, {0: 1}], "no forward is run for it alone"


@pytest.mark.parametrize("is_early", [True, False], ids=["early", "late"])
def test_nothing_is_ever_fed_twice(checkpoint: CausalCheckpoint, is_early: bool) -> None:
    """Each chunk once, and each sampled token once but for the last of its chunk."""
    stage = Stage(checkpoint)
    chunks = [([A] * n, 1 + n % 4) for n in (7, 1, 12, 3, 3)]
    said = play(stage.open(prompt="think"), chunks, is_early=is_early)
    prompt = 1
    assert stage.runtime.rows == prompt + sum(len(ids) + count - 1 for ids, count in chunks)
    assert said[-1].closed.context_tokens == stage.runtime.rows


def test_the_most_tokens_count_for_each_chunk(stage: Stage) -> None:
    player = stage.open()
    said = [player.unit([A]) for _ in range(3)]
    assert [len(it.ids) for it in said] == [4, 4, 4]
    assert {(it.done.end, it.done.finish) for it in said} == {(End.CHUNK, Finish.LENGTH)}
    assert [it.done.usage.output_text_tokens for it in said] == [4, 4, 4]


def test_settings_of_one_chunk_do_not_stick(stage: Stage, greedy: Any) -> None:
    player = stage.open()
    hot = UnitOverrides(max_new_tokens=1, temperature=2.0, stop_token_ids=tuple(range(50)), seed=3)
    first = player.unit([A, B], overrides=hot)
    second = player.unit([C])
    assert len(first.ids) == 1
    assert second.ids == greedy([A, B, C], 4)


@pytest.mark.parametrize("ignore", [True, False])
def test_end_of_sequence_ends_unless_ignored(checkpoint: CausalCheckpoint, greedy: Any, ignore: bool) -> None:
    expected = greedy([A, B], 4)
    end = expected[1]
    stage = Stage(replace(checkpoint, ends=frozenset((end,))))
    said = stage.open(replace(GREEDY, ignore_eos=ignore)).unit([A, B])
    if ignore:
        assert (said.ids, said.done.finish) == (expected, Finish.LENGTH)
    else:
        assert said.ids == expected[: expected.index(end) + 1]
        assert (said.done.end, said.done.finish) == (End.CHUNK, Finish.EOS)


def test_the_end_of_the_input_is_a_turn(stage: Stage) -> None:
    player = stage.open()
    assert player.unit([A], ends=True).done.end is End.TURN
    rows = stage.runtime.rows
    said = player.unit(None, ends=True)
    assert (said.done.end, said.done.finish, said.ids) == (End.TURN, None, [])
    assert (said.prefilled.failure, said.closed.discarded_tokens) == (None, 0)
    assert stage.runtime.rows == rows, "without a chunk nothing is run"


def test_a_new_utterance_begins_after_the_prompt(stage: Stage, greedy: Any) -> None:
    player = stage.open(prompt="think")
    prompt = player.stream.tokenizer.encode("think")
    player.unit([A, B, C], ends=True)
    said = player.unit([D], begins=True)
    assert said.prefilled.context_tokens == len(prompt) + 1
    assert said.ids == greedy([*prompt, D], 4)
    assert said.done.usage.cached_tokens == len(prompt), "the prompt is not computed again"


def test_cancel_stops_at_next_token_and_keeps_fed_tokens(stage: Stage, greedy: Any) -> None:
    player = stage.open(replace(GREEDY, max_new_tokens=50))
    number = player.send([A, B])
    stage.run(until=lambda: len(player.said(number).ids) == 3)
    player.stream.queue.cancel(number)
    stage.step()
    said = player.said(number)
    assert (said.done.end, said.done.finish) == (End.CANCELLED, None)
    assert len(said.ids) == 3
    stage.run()
    said = player.said(number)
    assert said.closed.discarded_tokens == 0
    after = player.unit([C])
    assert after.ids == greedy([A, B, *said.ids, C], 50)[: len(after.ids)]


def test_a_context_without_any_room_ends_the_session(checkpoint: CausalCheckpoint) -> None:
    player = Stage(checkpoint, limit=8).open()
    player.unit([A] * 5, overrides=most(3), keep=True)
    said = player.unit([B])
    assert (said.done.end, said.closed.context_tokens) == (End.CONTEXT_FULL, 8)


REJECTION = Failure("PARAMS_INVALID", "run.sampling.top_p must be more.", "run.sampling.top_p")


@pytest.mark.parametrize("is_early", [True, False], ids=["early", "late"])
def test_a_chunk_with_bad_settings_is_taken_back(stage: Stage, greedy: Any, is_early: bool) -> None:
    """Also if it has been fed already when its settings come, and with a token to carry before it."""
    player = stage.open()
    first = player.unit([A, B], overrides=most(2), keep=True)
    number = player.send([C, D], asks=False)
    if not is_early:
        stage.run()
        assert player.said(number).prefilled.context_tokens == 6
    player.ask(rejection=REJECTION)
    stage.run()
    said = player.said(number)
    assert (said.done.end, said.done.failure, said.ids) == (End.FAILED, REJECTION, [])
    assert said.closed.context_tokens == first.closed.context_tokens
    assert player.unit([E]).ids == greedy([A, B, *first.ids, E], 4)


def test_text_that_cannot_fit_is_refused_before_it_is_read(stage: Stage) -> None:
    player = stage.open()
    said = player.unit("x" * 10_000)
    assert said.prefilled.failure is not None
    assert (said.prefilled.failure.reason, said.prefilled.failure.field) == ("INPUT_TOO_LONG", "stream.text")
    assert said.done.end is End.FAILED
    assert player.unit([A]).done.end is End.CHUNK


@pytest.mark.parametrize("when", ["chunk", "decode"])
def test_bad_numbers_fail_one_unit_and_leave_no_trace(stage: Stage, greedy: Any, when: str) -> None:
    player = stage.open()
    first = player.unit([A, B], overrides=most(1))
    number = player.send([C, D])
    if when == "decode":
        stage.run(until=lambda: len(player.said(number).ids) == 1)
    stage.runtime.spoiled.add(0)
    stage.run()
    said = player.said(number)
    assert (said.done.end, said.done.failure is not None) == (End.FAILED, True)
    assert said.closed.context_tokens == first.closed.context_tokens
    assert player.unit([E]).ids == greedy([A, B, E], 4)


def test_text_is_text_and_never_a_special_token(stage: Stage) -> None:
    player = stage.open()
    ids = player.stream.tokenizer.encode("<|im_end|>")
    assert len(ids) > 1
    assert player.unit("<|im_end|>").done.usage.input_text_tokens == len(ids)


def test_a_character_leaves_whole_and_the_ids_at_once(checkpoint: CausalCheckpoint) -> None:
    tokenizer = checkpoint.tokenizer
    ids = tokenizer.encode("é€")
    assert len(ids) == 5
    stage = Stage(checkpoint)
    player = stage.open(replace(GREEDY, max_new_tokens=5))
    forced = iter(ids)
    stage.runtime.scores = lambda hidden: torch.nn.functional.one_hot(  # type: ignore[method-assign]
        torch.tensor([next(forced)]), stage.runtime.info.vocabulary
    ).float()
    number = player.send([A])
    stage.run()
    pieces = [(it.text, it.token_ids) for it in player.said(number).events if isinstance(it, Piece)]
    assert pieces == [("", (ids[0],)), ("é", (ids[1],)), ("", (ids[2],)), ("", (ids[3],)), ("€", (ids[4],))]


def test_an_idle_stream_costs_no_tick_and_goes_on(checkpoint: CausalCheckpoint, greedy: Any) -> None:
    stage = Stage(checkpoint, slots=2)
    idle, busy = stage.open(), stage.open()
    first = idle.unit([A, B, C], overrides=most(1))
    before = len(stage.runtime.forwards)
    busy.unit([D, E])
    assert all(0 not in forward for forward in stage.runtime.forwards[before:])
    assert not stage.tick.has_work([idle.stream])
    assert first.closed.context_tokens == 3
    assert idle.unit([F]).ids == greedy([A, B, C, F], 4)


def test_the_duplex_model_continues_tokens_too() -> None:
    runtime = DuplexRuntime(antiphon_mini.components(*tiny.model()), 1)
    assert Mode.TOKENS in runtime.info.modes
    guest = guests.Guest(TokensSetup(GREEDY, 0), [(StreamInput((A, B, C)), UnitOverrides())])
    guests.play(runtime, [guest], random.Random(0), [0])
    expected, plain = [A, B, C], tiny.model()[0].llm
    for _ in range(GREEDY.max_new_tokens):
        expected.append(int(plain(input_ids=torch.tensor([expected])).logits[0, -1].argmax()))
    assert Chunked(guest.told).ids == expected[3:]
