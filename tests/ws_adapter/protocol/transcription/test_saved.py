"""A transcription that another adapter goes on with equals one that was never disturbed."""

import random

import pytest

from tests.ws_adapter.support.saving import assert_torn_states_are_refused, save
from tests.ws_adapter.support.transcription_conversation import (
    COMMIT,
    FINAL,
    UPDATE,
    TranscriptionConversation,
    append,
    delta,
    done,
)
from ws_adapter.protocol.core.blobs import LEAST_PIECE, Blobs, ByteQueue, bytes_of

STEPS = ("update", "commit", "final", *["append"] * 3, *["answer"] * 2, "wait")


@pytest.mark.parametrize("seed", range(20))
def test_session_that_is_restored_after_any_step_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    """A slot is there whenever it is asked for, and the worker has begun whenever the adapter dies."""
    alone, moved = TranscriptionConversation(), TranscriptionConversation()
    rng, moves = random.Random(seed), random.Random(seed)
    for at in range(60):
        step, amount = rng.choice(STEPS), rng.random()
        for session in (alone, moved):
            match step:
                case "update":
                    session.client(UPDATE)
                case "commit":
                    session.client(COMMIT)
                case "final":
                    session.client(FINAL)
                case "append":
                    session.client(append(round(amount * 3, 2), at))
                case "answer":
                    session.complete(f"word{at} ")
                case "wait":
                    session.wait(amount * 3)
            if session.slot == "wanted":
                session.serve()
        if moves.random() < 0.3:
            moved.move()

    assert moved.sent == alone.sent
    assert moved.closed == alone.closed
    assert [(run.unit, run.begins, run.ends) for run in moved.heard] == [
        (run.unit, run.begins, run.ends) for run in alone.heard
    ]
    assert b"".join(run.audio for run in moved.heard) == b"".join(run.audio for run in alone.heard)


def test_utterance_that_the_worker_had_begun_fails_without_a_journal() -> None:
    session = TranscriptionConversation()
    session.begin()
    session.finish(1, "one")
    (failed,) = session.move(has_journal=False)
    assert failed["code"] == "processing_error"
    session.client(FINAL, append(), FINAL)
    session.serve()
    assert session.complete("two") == [delta("two"), done("two", completion=1)]


def test_utterance_that_no_worker_had_is_heard_by_the_next_one() -> None:
    session = TranscriptionConversation()
    session.client(UPDATE, COMMIT, append(2.0, 7), FINAL)
    assert session.move() == []
    session.serve()
    assert session.complete("two") == [delta("two"), done("two", completion=1)]
    assert session.samples == 32_000


def test_state_that_is_torn_is_refused() -> None:
    session = TranscriptionConversation()
    session.client(UPDATE, COMMIT, append())
    state, blobs = save(session.dialect, session.now, has_journal=False)
    assert_torn_states_are_refused(session.new_dialect, state, blobs, session.now)


@pytest.mark.parametrize("seed", range(10))
def test_queue_of_bytes_keeps_their_order_and_is_saved_in_pieces_that_are_written_once(seed: int) -> None:
    rng, model, queue = random.Random(seed), b"", ByteQueue()
    blobs = Blobs()
    for _ in range(200):
        if rng.random() < 0.6:
            data = rng.randbytes(rng.choice([1, 100, LEAST_PIECE // 3, 2 * LEAST_PIECE]))
            queue.put(data)
            model += data
        else:
            size = rng.choice([1, 500, LEAST_PIECE])
            assert queue.take(size) == model[:size]
            model = model[size:]
        assert (len(queue), queue.all) == (len(model), model)
        blobs.begin()
        saved = queue.save(blobs)
        assert len(saved.pieces) <= 2 + 2 * len(model) // LEAST_PIECE
        kept = {number: bytes_of(data) for number, data in blobs.kept.items()}
        if rng.random() < 0.1:
            queue = ByteQueue.restored(saved, kept)
    other = ByteQueue(b"front")
    other.extend(queue)
    assert other.all == b"front" + model
