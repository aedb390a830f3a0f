"""Units on their way to a worker: bytes, cancels, tokens and the saved state."""

import numpy as np

from ws_adapter.protocol.core.actions import CancelUnits, RunUnit, StandaloneText, Withdraw
from ws_adapter.protocol.core.answer import Answer
from ws_adapter.protocol.core.signals import (
    Finalized,
    Piece,
    Ready,
    TextPurpose,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.duplex.flow import UnitFlow, summed
from ws_adapter.protocol.duplex.input import Append
from ws_adapter.protocol.wire.codec import Clip
from ws_adapter.protocol.wire.events import InputTokenDetails, OutputTokenDetails, TokenUsage
from ws_adapter.protocol.wire.limits import Limits

READY = Ready(prompt_tokens=7, context_limit=100, max_units_in_flight=2, generate_audio=True)
SECOND = Clip(np.zeros(16_000, np.float32))
UNIT_BYTES = 64_000


def begun() -> UnitFlow:
    """Return the flow of a session whose worker is ready."""
    flow = UnitFlow(Limits(), lambda: "0")
    flow.begin(READY, 0.0)
    return flow


def usage(first: int) -> TokenUsage:
    """Return tokens of six different counts from `first` on."""
    read = InputTokenDetails(first, first + 1, first + 2, first + 3)
    made = OutputTokenDetails(first + 4, first + 5)
    return TokenUsage(5 * first + 12, 3 * first + 3, 2 * first + 9, read, made)


def test_usage_is_summed_field_by_field() -> None:
    assert summed(usage(10), usage(200)) == TokenUsage(
        1074, 636, 438, InputTokenDetails(210, 212, 214, 216), OutputTokenDetails(218, 220)
    )


def test_held_bytes_count_sound_and_pictures_until_the_unit_is_closed() -> None:
    flow = begun()
    assert flow.held_bytes == 0

    flow.append(Append(SECOND, "i", frames=(bytes(300), bytes(40))), 1.0)
    assert flow.held_bytes == UNIT_BYTES + 340
    for _ in range(2):
        flow.append(Append(SECOND, "i"), 1.0)
    assert flow.held_bytes == 3 * UNIT_BYTES + 340
    assert flow.waiting_s == 1.0

    steps = flow.signal(Finalized(1), 2.0)
    assert [step.unit for step in steps if isinstance(step, RunUnit)] == [3]
    assert flow.held_bytes == 2 * UNIT_BYTES
    flow.texts.put(StandaloneText(TextPurpose.INSTRUCTIONS, "abc"))
    assert flow.held_bytes == 2 * UNIT_BYTES + 3


def test_interrupted_first_unit_is_cancelled_once_it_speaks() -> None:
    flow = begun()
    flow.append(Append(SECOND, "i"), 1.0)

    assert flow.interrupt() == [], "before its first word the model would answer in the next unit"
    assert flow.signal(Piece(1, "Hel", b""), 1.5) == [CancelUnits(1)]
    assert flow.signal(Piece(1, "lo", b""), 1.6) == [], "once is enough"
    (answer,) = flow.signal(UnitDone(1, UnitEnd.CANCELLED, 20), 1.7)
    assert isinstance(answer, Answer)
    assert answer.text == ""


def test_interrupted_response_is_withdrawn_and_its_next_unit_cancelled() -> None:
    flow = begun()
    for _ in range(2):
        flow.append(Append(SECOND, "i"), 1.0)
    flow.signal(Piece(1, "Hello", b""), 1.2)
    (answer,) = flow.signal(UnitDone(1, UnitEnd.CHUNK, 20, usage(1)), 1.3)
    assert isinstance(answer, Answer)
    assert answer.text == "Hello"
    assert flow.answers.tokens == summed(READY.tokens, usage(1))

    assert answer.response_id is not None
    assert flow.interrupt() == [Withdraw(answer.response_id), CancelUnits(2)]


def test_restored_flow_has_the_texts_and_bytes_of_the_saved_one() -> None:
    flow = begun()
    flow.append(Append(SECOND, "i"), 1.0)
    texts = [StandaloneText(TextPurpose.THINKING, text) for text in ("first", "second")]
    for text in texts:
        flow.texts.put(text)

    other = UnitFlow(Limits(), lambda: "1")
    other.restore(flow.save(2.0), 50.0)

    assert other.texts.waiting == tuple(texts)
    assert other.held_bytes == flow.held_bytes
    (run,) = other.append(Append(SECOND, "i"), 51.0)
    assert isinstance(run, RunUnit)
    assert (run.unit, run.texts) == (2, tuple(texts))
