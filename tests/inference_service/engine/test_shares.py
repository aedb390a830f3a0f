"""Tests of the shares that a tick grants, on a clock driven by the work done."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from inference_service.engine.batch.decoder import Segment
from inference_service.engine.batch.scheduler import LEAST_SHARE, UNIT_S
from inference_service.engine.tick import BACKGROUND_S, Tick
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, End, Piece, Prefilled, Progress, Ready, Ticked
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Content,
    DuplexSetup,
    Picture,
    Sampling,
    SessionSetup,
    StreamInput,
    TranscribeSetup,
    TurnInput,
    UnitInput,
    UnitOverrides,
    UnitRecord,
)
from inference_service.session.base.session import QueuedUnit, Session, Stage
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.test_engine import sound
from tests.support.drawing import jpeg

FORWARD_S, ROW_S, SPEECH_S, SLICE_S, OPENING_S = 0.004, 0.0003, 0.005, 0.02, 0.05
"""Seconds of a forward, a row in it, a step of speech, a slice of a picture and a dear opening."""
SLOTS = 10
PICTURE = jpeg("red", "circle", (64, 48))


@dataclass
class Spent:
    """One tick: rows of the language model by session, slices seen, sessions started and speaking."""

    began: float
    rows: dict[int, int] = field(default_factory=dict)
    slices: int = 0
    started: int = 0
    heard: list[int] = field(default_factory=list)
    """Slots of sessions that heard a second, or a portion of it."""
    speaking: list[int] = field(default_factory=list)
    waiting: frozenset[int] = frozenset()
    """Slots of sessions with work when it began."""
    ended: float = 0.0


class Play:
    """A runtime whose work moves the clock, and ticks over whoever is in it."""

    def __init__(self) -> None:
        self.now = time.monotonic()  # sessions note the real one when they are made
        model, tokenizer, config = tiny.model(sees=True)
        config = replace(config, context_limit=1024, window_high=512, window_low=384)
        self.runtime = DuplexRuntime(antiphon_mini.components(model, tokenizer, config), SLOTS)
        self.tick = Tick(self.runtime, clock=lambda: self.now)
        self.sessions: list[Session[Any]] = []
        self.told: dict[str, list[tuple[float, Any]]] = {}
        self.spent: list[Spent] = []
        self.ticks: list[Ticked] = []
        self._spy("think", self._thinks)
        self._spy("speak", self._speaks)
        self._spy("see", self._sees)
        self._spy("start", self._starts)
        self._spy("hear", self._hears)

    def _spy(self, name: str, note: Callable[[Any], None]) -> None:
        does = getattr(self.runtime, name)

        def noted(given: Any) -> Any:
            note(given)
            return does(given)

        setattr(self.runtime, name, noted)

    def _thinks(self, segments: list[Segment]) -> None:
        rows = {segment.slot: len(segment.rows) for segment in segments}
        self.now += FORWARD_S + ROW_S * sum(rows.values())
        self.spent[-1].rows |= rows

    def _speaks(self, sessions: Sequence[Session[Any]]) -> None:
        self.now += SPEECH_S * len(sessions)
        self.spent[-1].speaking = [session.slot for session in sessions]

    def _sees(self, slices: list[Any]) -> None:
        self.now += SLICE_S * len(slices)
        self.spent[-1].slices += len(slices)

    def _hears(self, sessions: Sequence[Session[Any]]) -> None:
        self.spent[-1].heard += [session.slot for session in sessions]

    def _starts(self, session: Session[Any]) -> None:
        self.now += OPENING_S
        self.spent[-1].started += 1

    def enter(self, name: str, setup: SessionSetup) -> Session[Any]:
        """A new session, which waits to be started."""
        session = self.runtime.open(name, len(self.sessions), setup, lambda event: None)
        session.preprocessor.begin()
        session.stage = Stage.OPENING
        self.sessions.append(session)
        self.told[name] = []
        return session

    def send(self, session: Session[Any], number: int, content: Content) -> None:
        """A whole unit, which has come just now."""
        heard = session.preprocessor.prepare(content)
        unit = QueuedUnit(number, heard, self.now, overrides=UnitOverrides(), finalize=True)
        session.queue.prefill(unit)

    def step(self) -> None:
        """One tick."""
        waiting = frozenset(session.slot for session in self.sessions if session.has_work)
        self.spent.append(Spent(self.now, waiting=waiting))
        ticked = self.tick.run(self.sessions)
        self.ticks += [ticked] if ticked else []
        self.spent[-1].ended = self.now
        for session in self.sessions:
            self.told[session.id] += [(self.now, event) for event in session.events]
            session.events.clear()

    def until(self, condition: Callable[[], bool]) -> None:
        """Ticks until it is so."""
        for _ in range(20_000):
            if condition():
                return
            self.step()
        raise TimeoutError

    def when(self, name: str, kind: type[Any], count: int = 1) -> float | None:
        """When a session was told of something for the `count`th time."""
        times = [when for when, event in self.told[name] if isinstance(event, kind)]
        return times[count - 1] if len(times) >= count else None

    def said(self, name: str) -> list[object]:
        """Texts, ids, sound and ends."""
        result: list[object] = []
        for _, event in self.told[name]:
            if isinstance(event, Piece):
                result.append((event.text, event.token_ids, event.audio is not None and len(event.audio)))
            elif isinstance(event, Done):
                result.append((event.unit, event.end))
        return result

    def talk(self, name: str = "talk", *, sees: bool = False) -> Session[Any]:
        """A conversation that has begun, in which every unit is spoken."""
        settings = replace(self.runtime.info.duplex_defaults, force_listen_count=0, greedy=True)
        setup = DuplexSetup("Be brief.", settings, self.runtime.info.window, 1, sees)
        return self.begun(name, setup)

    def begun(self, name: str, setup: SessionSetup) -> Session[Any]:
        """A session that has read its prompt."""
        session = self.enter(name, setup)
        self.until(lambda: self.has(name, Ready))
        return session

    def writer(self, most: int = 40, *, is_background: bool = False) -> Session[Any]:
        """A transcription that has begun."""
        sampling = Sampling(max_new_tokens=most, temperature=0.0)
        return self.begun("writer", TranscribeSetup(sampling, seed=1, is_background=is_background))

    def has(self, name: str, kind: type[Any]) -> bool:
        """Whether a session was told of something."""
        return self.when(name, kind) is not None

    def chat(self, name: str, *parts: str | Picture | Clip) -> Session[Any]:
        """A chat with its first turn sent."""
        session = self.begun(name, ChatSetup(Sampling(max_new_tokens=3, temperature=0.0), seed=1))
        self.send(session, 1, TurnInput((ChatMessage("user", parts),)))
        return session


@pytest.fixture
def stage() -> Play:
    return Play()


LONG = "a b c d " * 220


def crowd(stage: Play, count: int = 8) -> list[Session[Any]]:
    """Chats with long prompts, none of which has been read yet."""
    return [stage.chat(f"chat {i}", LONG) for i in range(count)]


def speak(stage: Play, talk: Session[Any], number: int) -> float:
    """A unit from its arrival to its last word; the seconds that it took."""
    came = stage.now
    stage.send(talk, number, UnitInput(sound(number)))
    stage.until(lambda: stage.when(talk.id, Done, number) is not None)
    return stage.now - came


def alone(units: int) -> tuple[list[float], list[object]]:
    """How long the units of a conversation take by itself, and what it says."""
    stage = Play()
    talk = stage.talk()
    return [speak(stage, talk, number) for number in range(1, units + 1)], stage.said("talk")


def require_undisturbed(stage: Play, took: list[float], usual: list[float], said: list[object]) -> None:
    assert stage.said("talk") == said
    assert max(took) < UNIT_S
    portion = FORWARD_S + LEAST_SHARE * ROW_S
    assert all(one <= other * 8 / 7 + 2 * portion for one, other in zip(took, usual, strict=True))


def test_a_speaking_unit_meets_its_deadline_behind_eight_prompts_and_says_the_same(stage: Play) -> None:
    usual = alone(3)
    talk = stage.talk()
    chats = crowd(stage)
    took = [speak(stage, talk, number) for number in (1, 2, 3)]
    require_undisturbed(stage, took, *usual)
    assert any(event.audio is not None for _, event in stage.told["talk"] if isinstance(event, Piece))
    assert any(not stage.has(chat.id, Prefilled) for chat in chats), "there was nothing to wait for"


def test_while_units_wait_the_others_get_an_eighth_of_the_time_and_ticks_report_it(stage: Play) -> None:
    talk = stage.talk()
    stage.ticks.clear()
    speak(stage, talk, 1)
    assert sum(tick.rest_s for tick in stage.ticks) == 0
    assert sum(tick.speaking for tick in stage.ticks) == sum(len(spent.speaking) for spent in stage.spent)
    chats = {chat.slot for chat in crowd(stage)}
    begin, first = len(stage.spent), len(stage.ticks)
    for number in range(2, 10):
        speak(stage, talk, number)

    busy = [spent for spent in stage.spent[begin:] if talk.slot in spent.waiting]
    granted = [sum(rows for slot, rows in spent.rows.items() if slot in chats) for spent in busy]
    assert max(granted) == LEAST_SHARE
    theirs = sum(rows * ROW_S for rows in granted)
    assert 0.06 <= theirs / (busy[-1].ended - busy[0].began) <= 0.15
    beside = stage.ticks[first:]
    reported = sum(tick.rest_s for tick in beside) / sum(tick.ended - tick.started for tick in beside)
    assert 0.04 <= reported <= 0.3


@pytest.mark.parametrize("passed", [0.0, UNIT_S / 2], ids=["they have time", "they are short of it"])
def test_a_unit_joins_those_under_way_while_these_have_half_of_their_time(stage: Play, passed: float) -> None:
    first, second = stage.talk("first"), stage.talk("second")
    stage.send(first, 1, UnitInput(sound(1)))
    stage.step()
    stage.now += passed
    stage.send(second, 1, UnitInput(sound(2)))
    stage.until(lambda: stage.has("second", Prefilled) or stage.has("first", Done))
    assert stage.has("first", Done) is bool(passed)
    assert stage.has("second", Prefilled) is not bool(passed)
    stage.until(lambda: stage.has("second", Done))


def test_unit_with_late_generate_order_delays_no_other_session(stage: Play) -> None:
    """Else whoever asks late, second after second, holds back the units of all others."""
    late, other = stage.talk("late"), stage.talk("other")
    heard = late.preprocessor.prepare(UnitInput(sound(1)))
    late.queue.prefill(QueuedUnit(1, heard, stage.now, finalize=True))
    stage.until(lambda: stage.has("late", Prefilled))
    stage.now += 0.9 * UNIT_S
    late.queue.generate(1, False, UnitOverrides(), at=stage.now)
    stage.send(other, 1, UnitInput(sound(2)))
    stage.step()
    assert stage.has("other", Prefilled)
    assert not stage.has("late", Done), "else there was nobody to wait for"
    stage.until(lambda: stage.has("late", Done) and stage.has("other", Done))


def test_overdue_chunk_of_many_seconds_delays_no_other_session(stage: Play) -> None:
    writer = stage.writer()
    talk = stage.talk()
    stage.send(writer, 1, StreamInput(sound(1, 16_000 * 30), begins=True))
    stage.step()
    stage.step()
    stage.now += 20.0
    stage.send(talk, 1, UnitInput(sound(2)))
    stage.until(lambda: stage.has("talk", Done))
    assert not stage.has("writer", Done)


def test_with_no_unit_in_sight_all_is_theirs(stage: Play) -> None:
    stage.talk()
    chats = crowd(stage, 2)
    stage.until(lambda: all(stage.has(chat.id, Done) for chat in chats))
    assert max(sum(spent.rows.values()) for spent in stage.spent) == stage.runtime.most_waiting


def test_a_recording_that_came_faster_than_it_was_said_is_no_more_urgent_than_it_has_to_be(
    stage: Play,
) -> None:
    """Its first second is due like any other; the rest is read ahead in the share of what can wait."""
    writer = stage.writer()
    stage.send(writer, 1, StreamInput(sound(1, 16_000 * 30), begins=True))
    dues = set()
    while not stage.has("writer", Done):
        stage.step()
        if writer.queue.first is not None and writer.due is not None:
            dues.add(round(writer.due - writer.queue.first.arrival, 3))
    assert {1.0, 2.0, 30.0} <= dues


def test_a_background_transcription_has_no_deadline_and_is_written_down(stage: Play) -> None:
    writer = stage.writer(4, is_background=True)
    stage.send(writer, 1, StreamInput(sound(1, 16_000), begins=True, ends=True))
    dues = set()
    while not stage.has("writer", Done):
        stage.step()
        dues.add(writer.due)
    assert dues == {None}


def test_a_background_transcription_joins_a_tick_each_tenth_of_a_second_while_others_have_work(
    stage: Play,
) -> None:
    writer = stage.writer(is_background=True)
    chats = crowd(stage, 2)
    stage.until(lambda: all(stage.has(chat.id, Ready) for chat in chats))
    stage.send(writer, 1, StreamInput(sound(1, 16_000 * 3), begins=True, ends=True))
    stage.until(lambda: stage.has("writer", Done))
    slots = {chat.slot for chat in chats}
    beside = [it for it in stage.spent if writer.slot in it.rows and it.waiting & slots]
    gaps = [later.began - earlier.began for earlier, later in pairwise(beside)]
    assert gaps
    assert min(gaps) >= BACKGROUND_S


def test_pictures_are_seen_a_few_in_a_tick_and_sound_goes_on_beside_them(stage: Play) -> None:
    stage.runtime.slice_rows = 64  # as large as those of MiniCPM-o: two of them are as much as a tick takes
    other = Play()
    quiet = other.talk("seeing", sees=True)
    other.send(quiet, 1, UnitInput(sound(1), (PICTURE,) * 4))
    other.until(lambda: other.has("seeing", Done))

    talk, seeing = stage.talk(), stage.talk("seeing", sees=True)
    stage.send(seeing, 1, UnitInput(sound(1), (PICTURE,) * 4))
    stage.send(talk, 1, UnitInput(sound(2)))
    stage.until(lambda: stage.has("seeing", Done))
    heard, seen = stage.when("talk", Prefilled), stage.when("seeing", Prefilled)

    assert [spent.slices for spent in stage.spent if spent.slices] == [2, 2]
    assert heard is not None
    assert seen is not None
    assert heard < seen
    assert stage.said("seeing") == other.said("seeing")


def test_an_album_is_looked_at_in_the_share_of_what_can_wait(stage: Play) -> None:
    stage.runtime.slice_rows = 64
    talk = stage.talk()
    album = stage.chat("album", *[Picture(PICTURE)] * 12, "What is it?")
    took = speak(stage, talk, 1)
    stage.until(lambda: stage.has(album.id, Done))
    busy = [spent.slices for spent in stage.spent if talk.slot in spent.waiting]
    assert max(busy) <= 1
    assert took < UNIT_S
    done = next(event for _, event in stage.told["album"] if isinstance(event, Done))
    assert done.end is End.TURN
    assert done.usage.input_vision_tokens == 12 * stage.runtime.components.slice_tokens


def test_new_sessions_open_one_per_tick_while_unit_is_pending(stage: Play) -> None:
    _, said = alone(1)
    talk, info = stage.talk(), stage.runtime.info
    begin, came = len(stage.spent), stage.now
    stage.send(talk, 1, UnitInput(sound(1)))
    for number in range(6):
        stage.enter(f"new {number}", DuplexSetup("x y z " * 40, info.duplex_defaults, info.window, seed=1))
    stage.until(lambda: all(stage.has(f"new {number}", Ready) for number in range(6)))
    assert [spent.started for spent in stage.spent[begin:] if spent.started] == [1] * 6
    done = stage.when("talk", Done)
    assert done is not None
    assert done < came + UNIT_S
    assert stage.said("talk") == said


def test_chat_waiting_for_its_turn_gets_progress_events(stage: Play) -> None:
    chats = crowd(stage, 6)
    stage.now += 10.0
    stage.step()
    assert all(isinstance(event, Progress) for chat in chats for _, event in stage.told[chat.id][-1:])
    assert len(stage.spent[-1].rows) < len(chats)


def replaying(stage: Play, count: int) -> list[Session[Any]]:
    """Sessions whose callers replay what they like."""
    info = stage.runtime.info
    setup = DuplexSetup("Be brief.", info.duplex_defaults, info.window, 1, records=True)
    return [stage.begun(f"replay {number}", setup) for number in range(count)]


def test_thousands_of_replayed_units_cost_a_talking_neighbour_no_second(stage: Play) -> None:
    usual = alone(4)
    talk = stage.talk()
    replays, recorded = replaying(stage, 8), UnitRecord(End.LISTEN)
    for session in replays:
        for number in range(1, 251):
            stage.send(session, number, UnitInput(sound(number), recorded=recorded))
    begin = len(stage.spent)
    took = [speak(stage, talk, number) for number in (1, 2, 3, 4)]

    require_undisturbed(stage, took, *usual)
    slots = {session.slot for session in replays}
    busy = [spent for spent in stage.spent[begin:] if talk.slot in spent.waiting]
    heard = [len(slots.intersection(spent.heard)) for spent in busy]
    most = -(-LEAST_SHARE // replays[0].clip_rows)
    assert 0 < max(heard) <= most < len(replays)
    assert sum(heard) > 0
    assert all(session.queue.first is not None for session in replays), "they were not done before"
