"""Cutting input into units, dropping stale ones, and forcing the model to listen."""

import base64
from typing import Any

import numpy as np
import pytest

from tests.ws_adapter.support.conversation import (
    SPEECH,
    Conversation,
    active,
    append,
    codes,
    kinds,
    pcm,
    ready_signal,
)
from ws_adapter.protocol.core.signals import Finalized, Piece, UnitDone, UnitEnd
from ws_adapter.protocol.wire.limits import MOST_AT_WORKER
from ws_adapter.worker.session_streams import WRITES_WAITING


@pytest.fixture
def talk() -> Conversation:
    return active()


def samples(count: int, **fields: Any) -> dict[str, Any]:
    return append(count / 16_000, **fields)


def runs_after(talk: Conversation, *waits: float) -> list[int]:
    """How many units have been given to the worker after each of these times."""
    counts = []
    for seconds in waits:
        talk.wait(seconds)
        counts.append(len(talk.runs))
    return counts


def append_event(**fields: Any) -> dict[str, Any]:
    return {"type": "input.append", "input": fields}


def encoded(values: list[float], dtype: str = "<f4") -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


@pytest.mark.parametrize(
    ("count", "units"), [(16_000, 1), (32_000, 2), (31_999, 1), (48_001, 3), (960_000, 60)]
)
def test_whole_units_are_cut_in_order(talk: Conversation, count: int, units: int) -> None:
    assert talk.client(samples(count)) == []
    talk.finish_all()
    assert [len(run.audio) for run in talk.runs] == [64_000] * units


def test_append_beyond_a_minute_is_refused_whole(talk: Conversation) -> None:
    assert codes(talk.client(samples(960_001))) == ["invalid_payload"]
    assert runs_after(talk, 5) == [0]


def test_the_rest_stays_and_the_next_append_joins_it(talk: Conversation) -> None:
    talk.client({"type": "input.append", "input": {"audio": pcm(1.5, 0.1)}})
    talk.client({"type": "input.append", "input": {"audio": pcm(0.5, 0.2)}})
    second = np.frombuffer(talk.runs[1].audio, "<f4")
    np.testing.assert_array_equal(second, np.repeat(np.float32([0.1, 0.2]), 8000))


@pytest.mark.parametrize("count", [15_840, 15_999])
def test_nearly_a_unit_is_padded_at_once(talk: Conversation, count: int) -> None:
    talk.client(samples(count))
    event = talk.finish_all()[0]
    assert event["metrics"]["padded_samples"] == 16_000 - count
    assert np.frombuffer(talk.runs[0].audio, "<f4")[count:].any() == False  # noqa: E712


def test_nearly_a_unit_waits_if_something_is_carried(talk: Conversation) -> None:
    talk.client(samples(100))
    talk.client(samples(15_850))
    assert talk.runs == []


@pytest.mark.parametrize("count", [1, 3_999, 4_000, 15_839])
def test_short_append_waits_and_runs_after_the_flush_time(talk: Conversation, count: int) -> None:
    assert talk.client(samples(count)) == []
    assert runs_after(talk, 1.24, 0.02) == [0, 1]
    assert talk.finish_all()[0]["metrics"]["padded_samples"] == 16_000 - count


def test_flush_time_counts_from_the_last_append(talk: Conversation) -> None:
    talk.client(samples(100, input_id="a"))
    talk.wait(1.0)
    talk.client(samples(100, input_id="b"))
    assert runs_after(talk, 1.0, 0.25) == [0, 1]
    assert talk.finish_all()[0]["input_id"] == "b"


def speaking(**options: Any) -> Conversation:
    """A response is open; the last unit was cut just now."""
    talk = active(**options)
    talk.client(append())
    talk.speak(1)
    return talk


def run_times(talk: Conversation, seconds: float, appends: dict[float, float]) -> list[float]:
    """When units were given to a worker that speaks on at once; `appends` are lengths by their times."""
    start, given = talk.now, []
    moments = sorted({*appends, *np.arange(0.0, seconds, 1 / 64).tolist(), seconds})
    for moment in moments:
        talk.wait(start + moment - talk.now)
        if moment in appends:
            talk.client(append(appends[moment]))
        for run in talk.runs[len(given) + 1 :]:
            given.append(moment)
            talk.speak(run.unit)
    return given


def test_short_append_while_the_model_speaks_runs_as_soon_as_a_unit_is_late() -> None:
    talk = speaking()
    talk.wait(1.0)
    talk.client(samples(4_800, input_id="last of the file"))
    assert runs_after(talk, 0.19, 0.02) == [1, 2]
    event = talk.speak(2)[0]
    assert (event["input_id"], event["metrics"]["padded_samples"]) == ("last of the file", 11_200)


def test_short_append_waits_for_the_flush_time_while_the_model_listens(talk: Conversation) -> None:
    talk.client(append())
    talk.finish(1)
    talk.wait(1.0)
    talk.client(samples(4_800))
    assert runs_after(talk, 1.24, 0.02) == [1, 2]


def test_short_append_inside_a_live_stream_leaves_no_hole() -> None:
    """A recording that ends after 2.3 s, and then silence: in whole seconds, sent when they begin or end."""
    by_append = {1.0: 1.0, 2.0: 0.3, 3.0: 1.0, 4.0: 1.0, 5.0: 1.0}
    by_sound = {1.0: 1.0, 1.3: 0.3, 2.3: 1.0, 3.3: 1.0, 4.3: 1.0}
    assert run_times(speaking(), 5.5, by_append) == pytest.approx([1.0, 2.2, 3.0, 4.0, 5.0], abs=0.02)
    assert run_times(speaking(), 5.5, by_sound) == pytest.approx([1.0, 2.2, 2.3, 3.3, 4.3], abs=0.02)


@pytest.mark.parametrize("piece", [0.02, 0.2, 0.5])
def test_steady_stream_is_never_padded_by_a_little_jitter(piece: float) -> None:
    """Appends come when their sound is over, each up to 0.15 s later than that."""
    random = np.random.default_rng(7)
    count = round(20 / piece)
    arrivals = np.maximum.accumulate(random.uniform(0, 0.15, count) + piece * np.arange(1, count + 1))
    arrivals += 1e-6 * np.arange(count)
    talk = speaking()
    run_times(talk, 21.0, dict.fromkeys(arrivals.tolist(), piece))
    assert len(talk.runs) == 21
    assert not any("padded_samples" in event.get("metrics", {}) for event in talk.sent)


def test_audio_burst_after_stall_forms_units_without_padding() -> None:
    """Nothing comes for 1.5 s, and then all of it at once, in appends of 20 ms."""
    talk = speaking()
    talk.wait(1.5)
    for _ in range(75):
        talk.client(append(0.02))
        talk.wait(0.001)
    talk.speak(2)
    talk.wait(0.05)
    assert len(talk.runs) == 2
    assert not any("padded_samples" in event.get("metrics", {}) for event in talk.sent)


def test_appends_that_are_all_a_little_short_keep_the_pace() -> None:
    """0.96 s every 0.96 s: whenever two of them are needed for a unit, the one that is there is padded."""
    talk = speaking()
    given = run_times(talk, 30.0, {0.96 * n: 0.96 for n in range(1, 31)})
    late = max(at - second for second, at in enumerate(given, 1))
    assert late < 0.25


def test_short_append_behind_fed_silence_is_late_a_second_after_that() -> None:
    talk = active(silence_tail_units=10)
    talk.client(append(2.0))
    talk.finish(1)
    talk.speak(2)
    talk.wait(2.3)
    assert [talk.runs[-1].unit, talk.runs[-1].audio] == [4, bytes(64_000)]
    talk.speak(3)
    talk.speak(4)
    talk.client(samples(4_800))
    assert runs_after(talk, 1.1, 0.1) == [4, 5]


def test_held_input_is_not_late() -> None:
    talk = Conversation(silence_tail_units=0)
    talk.client({"type": "session.init", "payload": {}})
    talk.client(append(1.5))
    talk.wait(30.0)
    talk.connect()
    talk.worker(ready_signal())
    talk.speak(1)
    assert runs_after(talk, 1.1, 0.2) == [1, 2]


def test_force_listen_flushes_the_carry_with_its_append(talk: Conversation) -> None:
    talk.client(samples(4_000))
    talk.client(samples(16_000, force_listen=True))
    assert [run.force_listen for run in talk.runs] == [True, True]
    assert talk.finish_all()[1]["metrics"]["padded_samples"] == 12_000


@pytest.mark.parametrize("audio", [{}, {"audio": None}, {"audio": ""}])
def test_force_listen_without_audio_is_a_unit_of_silence(talk: Conversation, audio: dict[str, Any]) -> None:
    talk.client({"type": "input.append", "input": {**audio, "force_listen": True}})
    assert [(run.audio, run.force_listen) for run in talk.runs] == [(bytes(64_000), True)]


def test_force_listen_without_audio_flushes_the_carry_instead(talk: Conversation) -> None:
    talk.client(samples(4_000))
    talk.client({"type": "input.append", "input": {"hints": {"force_listen": True}}})
    assert [run.audio != bytes(64_000) for run in talk.runs] == [True]


@pytest.mark.parametrize(
    "fields",
    [
        *({name: pcm()} for name in ("audio", "audio_base64", "audio_data")),
        *({"audio": {name: pcm()}} for name in ("data", "base64", "audio_base64")),
        {"audio": None, "audio_data": pcm()},
        {"audio": pcm(), "format": "f32", "sample_rate": 16000},
        {"audio": pcm(), "sample_rate_hz": 16000},
        {"audio": pcm(), "max_slice_nums": 9},
    ],
)
def test_spellings_of_audio(talk: Conversation, fields: dict[str, Any]) -> None:
    assert talk.client(append_event(**fields)) == []
    assert len(talk.runs) == 1


BAD_FIELDS: list[tuple[str, object]] = [
    *(("audio", value) for value in (5, [], "YWJjZGU=")),
    *(("audio", encoded([0.0, value, 0.0])) for value in (np.nan, np.inf, -np.inf, 16.1, -1e30)),
    *(("force_listen", "yes"), ("input_id", 7), ("input_id", "x" * 129), ("format", "mp3")),
    *(("sample_rate", 8000), ("sample_rate_hz", 24000), ("max_slice_nums", 0)),
    *(("video_frames", "jpeg"), ("hints", True)),
]
BAD_INPUTS = [
    *(({"input": {"audio": pcm(), field: value}}, "invalid_payload", field) for field, value in BAD_FIELDS),
    ({"input": {"audio": "YWJj", "format": "pcm16"}}, "invalid_payload", "audio"),
    *(({"input": it}, "missing_field", "audio") for it in ({}, {"audio": None}, {"audio": ""})),
    ({"input": {"audio": {"data": ""}}}, "missing_field", "audio"),
    ({}, "missing_field", ""),
]


@pytest.mark.parametrize(("fields", "code", "param"), BAD_INPUTS)
def test_bad_append_is_refused_with_its_field(
    talk: Conversation, fields: dict[str, Any], code: str, param: str
) -> None:
    (event,) = talk.client({"type": "input.append", **fields})
    assert event["error"]["code"] == code
    assert event["error"]["param"] == f"input.{param}".rstrip(".")
    assert talk.runs == []


def test_loud_audio_is_clipped_and_counted_and_pcm16_scaled(talk: Conversation) -> None:
    talk.client(append_event(audio=encoded([1.5, -16.0, 1.0] + [0.0] * 15_997)))
    talk.client(append_event(audio=encoded([-32768, 16384, 0] + [0] * 15_997, "<i2"), format="pcm16"))
    assert talk.finish_all()[0]["metrics"]["clipped_samples"] == 2
    loud, scaled = (np.frombuffer(run.audio, "<f4")[:4].tolist() for run in talk.runs)
    assert loud == [1.0, -1.0, 1.0, 0.0]
    assert scaled == [-1.0, 0.5, 0.0, 0.0]


def test_frames_are_counted_and_not_looked_at(talk: Conversation) -> None:
    talk.client(append(video_frames=["no base64", {"data": "x"}, ""]), is_proper=False)
    talk.client(append(frames=["x"]))
    events = talk.finish_all()
    assert [event["metrics"].get("ignored_frames") for event in events] == [3, 1]


def test_stale_units_are_dropped_when_a_newer_append_waits(talk: Conversation) -> None:
    for number in range(6):
        talk.client(append(input_id=f"in-{number}"))
    talk.wait(3.1)
    talk.client(append(input_id="new"))
    talk.finish(1)

    # Units 3 to 6 had waited too long; their listens keep their places, behind units 1 and 2.
    talk.finish(2)
    told = [(e["input_id"], e["metrics"].get("dropped"), e.get("chunk_index")) for e in talk.sent[-6:]]
    assert told == [(f"in-{n}", None if n < 2 else True, n) for n in range(6)]
    assert [e["metrics"]["dropped_total"] for e in talk.sent[-4:]] == [1, 2, 3, 4]
    assert [run.unit for run in talk.runs] == [1, 2, 3]
    assert talk.finish(3)[0]["input_id"] == "new"


@pytest.mark.parametrize(
    ("appends", "seconds", "wait"), [(4, 1.0, 3.0), (1, 40.0, 30.0)], ids=["as long as allowed", "the newest"]
)
def test_units_that_waited_as_long_as_allowed_or_of_the_newest_append_still_run(
    talk: Conversation, appends: int, seconds: float, wait: float
) -> None:
    for _ in range(appends):
        talk.client(append(seconds))
    talk.wait(wait)
    units = round(appends * seconds)
    assert [event["metrics"].get("dropped") for event in talk.finish_all()] == [None] * units


@pytest.mark.parametrize(
    ("limit", "appends"), [({"max_waiting_units": 4}, 8), ({"max_waiting_bytes": 3 * 64_000}, 7)]
)
def test_more_waiting_than_allowed_drops_the_oldest_at_once(limit: dict[str, int], appends: int) -> None:
    talk = active(**limit)
    for number in range(appends):
        talk.client(append(input_id=f"in-{number}"))
    events = talk.finish_all()
    assert [e["input_id"] for e in events] == [f"in-{number}" for number in range(appends)]
    assert [e["input_id"] for e in events if e["metrics"].get("dropped")] == ["in-2", "in-3"]


def test_dropped_unit_inside_a_response_is_answered_by_the_one_that_speaks() -> None:
    talk = active(max_waiting_units=1)
    for number in range(4):
        talk.client(append(input_id=f"in-{number}"))
    talk.speak(1)
    talk.speak(2)
    events = talk.speak(3)
    assert [e["kind"] for e in talk.sent if e.get("metrics", {}).get("dropped")] == []
    assert events[0]["metrics"]["dropped_total"] == 1
    assert events[0]["input_id"] == "in-3"
    assert events[0]["chunk_index"] == 3


def test_force_listen_of_a_dropped_unit_moves_to_the_next() -> None:
    talk = active(max_waiting_units=1)
    talk.client(append(2.0))
    talk.client(append(force_listen=True))
    talk.client(append())
    talk.finish_all()
    assert [run.force_listen for run in talk.runs] == [False, False, True]


def test_force_listen_cancels_unit_and_drops_unsent_answer(talk: Conversation) -> None:
    talk.client(append(3.0))
    talk.worker(Piece(1, "Seven", SPEECH))
    talk.client(append(2.0, force_listen=True))
    assert talk.cancelled == [2]
    first = talk.worker(Piece(1, "teen", SPEECH), UnitDone(1, UnitEnd.CHUNK, 150), Finalized(1))
    assert kinds([*first, *talk.finish(2, UnitEnd.CANCELLED), *talk.finish_all(3)]) == ["listen"] * 5
    assert not any("response_id" in event for event in talk.sent)
    assert [run.force_listen for run in talk.runs] == [False, False, True, True, True]


def test_units_that_listen_anyway_are_not_cancelled(talk: Conversation) -> None:
    for _ in range(5):
        talk.client(append(force_listen=True))
    assert kinds(talk.finish_all()) == ["listen"] * 5
    assert talk.cancelled == []


def test_force_listen_inside_a_response_silences_it_at_once(talk: Conversation) -> None:
    talk.client(append(4.0))
    opened = talk.speak(1)[0]["response_id"]
    talk.worker(Piece(2, "eight", SPEECH))

    events = talk.client(append(input_id="stop", force_listen=True))

    assert events == []
    assert talk.cancelled == [3]
    second = talk.worker(UnitDone(2, UnitEnd.CHUNK, 150), Finalized(2))
    third = talk.finish(3, UnitEnd.CANCELLED)
    fourth = talk.finish(4)
    fifth = talk.finish(5)
    assert kinds([*second, *third, *fourth, *fifth]) == ["listen"] * 4
    assert second[0]["response_id"] == opened
    assert not any("response_id" in e for e in [*third, *fourth, *fifth])
    assert [run.force_listen for run in talk.runs[3:]] == [True, True]
    assert fifth[0]["input_id"] == "stop"


def test_no_worker_is_given_more_units_at_once_than_can_be_written() -> None:
    talk = Conversation()
    talk.activate(max_units_in_flight=1000)
    talk.client(append(20.0))
    assert len(talk.runs) == MOST_AT_WORKER
    assert 2 * MOST_AT_WORKER + 1 < WRITES_WAITING


def test_force_listen_again_cancels_each_unit_only_once(talk: Conversation) -> None:
    talk.client(append(4.0))
    talk.speak(1)
    for _ in range(30):
        talk.client(append(force_listen=True))
    assert talk.cancelled == [3]
    assert kinds(talk.speak(2, end=UnitEnd.TURN)) == ["listen"]
    assert talk.cancelled == [3]


def test_force_listen_after_sent_text_still_sends_listen_for_its_unit() -> None:
    talk = active(hold_output=True)
    talk.client(append())
    talk.flush_output()
    talk.speak(1)
    talk.flush_output(1)
    talk.client(append(force_listen=True))
    assert kinds(talk.sent)[-2:] == ["text", "listen"]
    assert talk.sent[-1]["metrics"] == talk.sent[-2]["metrics"]
    assert "chunk_index" not in talk.sent[-1]


def test_force_listen_replaces_unsent_output_with_listen() -> None:
    talk = active(hold_output=True)
    talk.client(append(2.0, input_id="a"))
    talk.flush_output()
    first = talk.speak(1)
    second = talk.speak(2)
    assert kinds([*first, *second]) == ["text", "audio", "text", "audio"]

    talk.client(append(input_id="stop", force_listen=True))

    taken_back = talk.sent[-2:]
    assert kinds(talk.sent) == ["session.queue_done", "session.created", "listen", "listen"]
    assert taken_back[0]["response_id"] == first[0]["response_id"]
    assert "response_id" not in taken_back[1]
    assert [event["chunk_index"] for event in taken_back] == [0, 1]
    assert [event["metrics"]["kv_cache_length"] for event in taken_back] == [101, 102]
    assert "response_id" not in talk.finish(3)[0]


def test_turn_that_ends_before_its_cancel_arrives_opens_no_response(talk: Conversation) -> None:
    talk.client(append())
    talk.client(append(force_listen=True))
    assert kinds([*talk.speak(1, end=UnitEnd.TURN), *talk.finish(2)]) == ["listen"] * 2
    assert not any("response_id" in event for event in talk.sent)
