"""Count the tokens of sessions for the dispatcher that gave the lease."""

from inference_service.interface.engine import Done, End, Piece, Prefilled, UnitUsage
from inference_service.session.usage import ENDED_PER_SLOT, UsageTable

HEARD = UnitUsage(input_text_tokens=3, input_audio_tokens=20, input_vision_tokens=64, cached_tokens=2)
SAID = UnitUsage(
    input_text_tokens=3,
    input_audio_tokens=20,
    input_vision_tokens=64,
    output_text_tokens=5,
    output_audio_tokens=25,
)


def test_unit_is_counted_as_it_goes_and_once() -> None:
    usage = UsageTable(1).begin(7)
    usage.prompted(100)
    usage.count(Prefilled(1, 187, HEARD))
    assert (usage.input_tokens, usage.output_tokens) == (187, 0)
    for _ in range(3):
        usage.count(Piece(1, "a", (1, 2)))
    assert (usage.input_tokens, usage.output_tokens) == (187, 6)
    usage.count(Done(1, End.TURN, None, 217, SAID))
    assert (usage.input_tokens, usage.output_tokens) == (187, 30)


def test_ended_session_keeps_usage_of_unfinished_unit() -> None:
    table = UsageTable(1)
    usage = table.begin(7)
    usage.count(Prefilled(1, 87, HEARD))
    usage.count(Piece(1, "a", (1,)))
    table.end(usage)
    assert [(each.epoch, each.input_tokens, each.output_tokens) for each in table.all()] == [(7, 87, 1)]


def test_sessions_that_are_over_are_forgotten_at_last() -> None:
    table = UsageTable(2)
    for epoch in range(100):
        table.end(table.begin(epoch))
    running = table.begin(100)
    assert [each.epoch for each in table.all()] == [*range(100 - 2 * ENDED_PER_SLOT, 100), 100]
    assert running in table.all()
