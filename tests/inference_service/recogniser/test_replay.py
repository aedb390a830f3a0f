"""A conversation with recognised words that goes on in another session: it is heard with the same words."""

from dataclasses import replace

import numpy as np

from inference_service.interface.engine import Done, Event, Finalized, Prefilled
from inference_service.interface.setups import UnitRecord
from inference_service.recogniser.process import RecogniserProcess
from tests.inference_service.engine.test_engine import Client, Slots
from tests.inference_service.recogniser.conftest import UNIT, begin, hanging, question, say


def hear(client: Client, number: int, pcm: np.ndarray, recorded: UnitRecord | None = None) -> list[Event]:
    say(client, number, pcm, recorded)
    return client.until(Finalized, number)


def record_of(events: list[Event]) -> UnitRecord:
    (record,) = [event.record for event in events if isinstance(event, Done)]
    assert record is not None
    return record


def text_rows(events: list[Event]) -> int:
    (prefilled,) = [event for event in events if isinstance(event, Prefilled)]
    return prefilled.usage.input_text_tokens


def test_replayed_unit_has_the_words_of_its_record(slots: Slots, recogniser: RecogniserProcess) -> None:
    units = [*question(), np.zeros(UNIT, np.float32)]
    first = begin(slots, "first", records=True)
    heard = [hear(first, number, pcm) for number, pcm in enumerate(units, 1)]
    records = [record_of(events) for events in heard]
    assert sum(bool(record.words) for record in records) == 1

    second = begin(slots, "second", records=True)
    with hanging(recogniser):
        again = [
            hear(second, number, pcm, record)
            for number, (pcm, record) in enumerate(zip(units, records, strict=True), 1)
        ]
        assert [record_of(events) for events in again] == records
        assert [*map(text_rows, again)] == [*map(text_rows, heard)]
    assert not record_of(hear(second, len(units) + 1, np.zeros(UNIT))).words, "nothing is heard twice"


def test_unit_with_late_words_is_replayed_without_words(slots: Slots) -> None:
    units = question()
    first, second = (begin(slots, name, records=True) for name in ("first", "second"))
    heard = [hear(first, number, pcm) for number, pcm in enumerate(units, 1)]
    silent = [replace(record_of(events), words=()) for events in heard]
    assert silent != [*map(record_of, heard)]
    again = [
        hear(second, number, pcm, record)
        for number, (pcm, record) in enumerate(zip(units, silent, strict=True), 1)
    ]
    assert [*map(record_of, again)] == silent
    assert sum(map(text_rows, again)) < sum(map(text_rows, heard))
