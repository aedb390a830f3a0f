"""A Live session that another adapter goes on with equals one that was never disturbed."""

import base64
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.long import seeds
from tests.support.schemas import Event
from tests.ws_adapter.support.conversation import CATALOGUE
from tests.ws_adapter.support.live_conversation import AUDIO, LiveConversation, append
from tests.ws_adapter.support.saving import assert_torn_states_are_refused, save
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ, TextPurpose, UnitEnd
from ws_adapter.protocol.core.transcription import InputTranscriptDelta, InputTranscriptDone
from ws_adapter.protocol.live.sound import Format

FORMATS = [Format("audio/pcm", 24_000), Format("audio/pcm", 16_000), Format("audio/pcmu", 8_000)]
WORDS = "session.output_transcript.delta"
READS = frozenset({TextPurpose.COMMENTARY, TextPurpose.THINKING})


def begun(format: Format) -> LiveConversation:
    session = LiveConversation(replace(CATALOGUE, transcribes=True))
    audio = {"format": {"type": format.encoding, "rate": format.rate_hz}}
    session.begin(reads=READS, audio=audio, instructions="Be brief.")
    return session


def sounding(rng: random.Random, format: Format, seconds: float) -> Event:
    """Sound of a random pitch, loud or hardly to be heard."""
    times = np.arange(round(seconds * format.rate_hz)) / format.rate_hz
    samples = rng.choice([0.0, 0.3]) * np.sin(2 * np.pi * rng.randint(100, 2000) * times)
    data = base64.b64encode(format.encode(samples.astype(np.float32)))
    return {"type": "session.input_audio.append", "audio": data.decode()}


def steps(seed: int, session: LiveConversation, format: Format) -> Iterator[None]:
    """A random conversation, a step at a time; the worker has answered all that it got after each.

    Sound comes in seconds: a resampler that goes on holds back a little more or less than the last one, which
    must not decide when a unit is complete.
    """
    rng = random.Random(seed)
    for at in range(60):
        match rng.randrange(10):
            case 0:
                session.client({"type": "session.input_audio.mute"})
            case 1:
                session.client({"type": "session.input_audio.unmute"})
            case 2:
                kind = rng.choice(["session.commentary.append", "session.thinking.append"])
                session.client({"type": kind, "content": f"text {at}", "event_id": f"e{at}"})
            case 3:
                session.client({"type": "session.update", "session": {"delegation": {"type": "client"}}})
            case 4 if session.transcribing:
                session.transcribe(InputTranscriptDelta("so", 0.0, 0.5))
                session.transcribe(InputTranscriptDone("so", 0.5))
            case _:
                session.client(sounding(rng, format, 1.0))
                session.wait(1.0)
        while len(session.runs) > session.finished:
            ends = [(UnitEnd.LISTEN, ""), (UnitEnd.CHUNK, "word "), (UnitEnd.TURN, "end.")]
            session.finish(*rng.choice(ends))
        yield


def plain(events: list[Event]) -> list[Event]:
    """All events but those of the model's sound and words."""
    return [event for event in events if event["type"] not in (AUDIO, WORDS)]


def words(events: list[Event]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == WORDS)


def heard(events: list[Event], format: Format) -> Any:
    pieces = [base64.b64decode(event["delta"]) for event in events if event["type"] == AUDIO]
    return format.decode(b"".join(pieces))


@pytest.mark.parametrize("seed", [0, *seeds(*range(1, 6))])
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: f"{format.encoding}-{format.rate_hz}")
def test_session_that_is_restored_after_any_step_goes_on_as_if_nothing_had_happened(
    seed: int, format: Format
) -> None:
    alone, moved = begun(format), begun(format)
    rng = random.Random(seed)
    for _ in zip(steps(seed, alone, format), steps(seed, moved, format), strict=True):
        if rng.random() < 0.3:
            moved.move()

    if format.rate_hz == OUTPUT_RATE_HZ:
        assert moved.sent == alone.sent
    names = [{**event, "event_id": None} for event in plain(moved.sent)]
    assert names == [{**event, "event_id": None} for event in plain(alone.sent)]
    assert words(moved.sent) == words(alone.sent)
    assert heard(moved.sent, format).size == heard(alone.sent, format).size
    assert [(run.unit, run.force_listen, run.texts) for run in moved.runs] == [
        (run.unit, run.force_listen, run.texts) for run in alone.runs
    ]
    units = [np.frombuffer(b"".join(run.audio for run in one.runs), "<f4") for one in (moved, alone)]
    assert np.abs(units[0] - units[1]).max() < 1e-4
    assert [(it.item_id, len(it.audio)) for it in moved.transcribing] == [
        (it.item_id, len(it.audio)) for it in alone.transcribing
    ]
    ids = [event["event_id"] for event in moved.sent if "event_id" in event]
    assert len(ids) == len(set(ids))


def test_repeated_transcription_after_move_sends_only_new_words() -> None:
    session = begun(FORMATS[0])
    for level in [0.3] * 15 + [0.0] * 10:
        session.client(append(0.1, level))
        session.wait(0.1)
    assert session.transcribing
    session.transcribe(InputTranscriptDelta("how are", 0.0, 1.0))
    session.move()
    told = session.transcribe(InputTranscriptDelta("how", 0.0, 0.5))
    told += session.transcribe(InputTranscriptDelta(" are you", 0.5, 1.5))
    assert [event["delta"] for event in told] == [" you"]


def test_state_of_another_dialect_is_refused() -> None:
    session = begun(FORMATS[0])
    state, blobs = save(session.dialect, session.now)
    assert_torn_states_are_refused(session.new_dialect, state, blobs, session.now)
