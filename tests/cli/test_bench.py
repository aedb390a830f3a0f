"""The figures of `antiphon bench`."""

from antiphon_command.bench.talker import Talker


def test_unit_that_is_dropped_and_answered_late_is_one_deadline_miss() -> None:
    talker = Talker([], -1, 0)
    talker._sent = dict.fromkeys(("dropped", "late", "in time"), 0.0)
    for unit, at in (("dropped", 3.0), ("late", 1.5), ("in time", 0.5)):
        metrics = {"dropped": True} if unit == "dropped" else None
        talker._answered({"input_id": unit, "kind": "listen", "metrics": metrics}, at)
    assert (talker.record.units, talker.record.misses, talker.record.dropped) == (3, 2, 1)
