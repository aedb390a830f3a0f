"""An engine that plays a fixed list of outputs: for timing, fault and protocol tests, never for users.

It implements `inference_service.interface.engine.Engine` without a thread: what it has to say follows at once
from the calls, unless a unit of the script holds it until the test lets go.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace.export import SpanExporter

from antiphon_service.semconv import SERVICE_WORKER
from antiphon_service.telemetry import providers
from antiphon_service.telemetry.providers import Telemetry
from inference_service.app import Worker
from inference_service.interface.engine import (
    Closed,
    Deliver,
    Done,
    End,
    Engine,
    Event,
    Failure,
    Finalized,
    Finish,
    ModelInfo,
    Occupancy,
    OnFatal,
    OnTicks,
    Piece,
    Prefilled,
    Ready,
    Rewound,
    SessionFailed,
    Sink,
    UnitTimings,
    UnitUsage,
)
from inference_service.interface.setups import (
    MAX_SLICES,
    ChatMessage,
    ChatSetup,
    Content,
    DuplexSettings,
    DuplexSetup,
    Mode,
    Picture,
    SessionSetup,
    StreamInput,
    TranscribeSetup,
    TurnInput,
    UnitInput,
    UnitOverrides,
    UnitRecord,
    Window,
    WindowMode,
)
from inference_service.options import WorkerOptions
from inference_service.session.machine import Limits
from tests.support.patience import PATIENCE_S

PROMPT_TOKENS = 10
UNIT_TOKENS = 12
INFO = ModelInfo(
    name="scripted",
    context_limit=4096,
    input_sample_rate_hz=16_000,
    output_sample_rate_hz=24_000,
    unit_seconds=1.0,
    duplex_defaults=DuplexSettings(),
    window=Window(WindowMode.BASIC, 3000, 2000),
    vocabulary=1000,
    max_slices=MAX_SLICES,
)


REPLAYING = replace(INFO, replays_units=True)
"""A model that hears units again together with their records."""

CONTINUING = replace(INFO, modes=frozenset(Mode), sees=True, replays_units=True, replays_turns=True)
"""A model that can hold every kind of session, each of which goes on at another worker."""

EVERYTHING = replace(INFO, modes=frozenset(Mode), sees=True)


def _without_effect(content: Content) -> tuple[str, ...]:
    """Settings of a turn that the script ignores."""
    if not isinstance(content, TurnInput):
        return ()
    given = {
        "turn.tts.mode": content.tts_mode not in ("", "default"),
        "turn.tts.language": bool(content.language),
    }
    return tuple(path for path, is_given in given.items() if is_given)


@dataclass(frozen=True)
class Play:
    """The script of one unit. `hold` names the step that waits for `ScriptedSession.release`."""

    says: tuple[tuple[str, float], ...] = ()
    """Pieces: text, and seconds of audio."""
    end: End = End.LISTEN
    refused: Failure | None = None
    """Fails the unit's prefill, and with it the unit."""
    failure: Failure | None = None
    fails_session: SessionFailed | None = None
    breaks_device: bool = False
    stalls_engine: bool = False
    """The engine is at this unit for ever."""
    hold: str | None = None
    delay_s: float = 0.0
    """Time between the end of prefill and the first output."""
    tokens: int = 1
    """Text tokens that the unit counts as its output."""
    finish: Finish | None = None
    """Why decoding stopped, where a CHUNK or TURN is not to be an EOS."""

    tells: bool = False
    """Says, as JSON, what the session was set up with and what it has been given up to this unit."""


def listen(**changes: Any) -> Play:
    return Play(**changes)


def speak(*texts: str, seconds: float = 1.0, end: End = End.CHUNK, **changes: Any) -> Play:
    """The model says `texts`, each with its share of `seconds` of audio; with 0 it only writes."""
    return Play(says=tuple((text, seconds / len(texts)) for text in texts), end=end, **changes)


def turn_end(text: str = "", seconds: float = 0.5, **changes: Any) -> Play:
    return speak(text, seconds=seconds, end=End.TURN, **changes)


def write(*texts: str, **changes: Any) -> Play:
    """The model writes `texts`, without a voice: a chat turn, or what it makes of a chunk of a stream."""
    return speak(*texts, seconds=0.0, **{"tokens": len(texts), **changes})


def context_full() -> Play:
    return Play(end=End.CONTEXT_FULL)


def fails(reason: str = "INFERENCE_FAILED", message: str = "The unit failed.") -> Play:
    return Play(failure=Failure(reason, message, retryable=True))


def hang(step: str) -> Play:
    return Play(hold=step)


@dataclass(frozen=True)
class Script:
    """The script of one session: `plays`, and then the model listens, or begins again with `repeat`.

    Outside full duplex, listening is saying nothing: a turn ends with TURN, a chunk of a stream with CHUNK,
    and with TURN if it ends the utterance.
    `key` is what the test calls the session, for `ScriptedEngine.release`.
    """

    plays: tuple[Play, ...] = ()
    repeat: bool = False
    slow_start: bool = False
    """Ready only once `("ready", 0)` is released."""
    refuses: SessionFailed | None = None
    key: str = ""
    slow_cleanup: bool = False
    """Clean only once `("clean", 0)` is released."""

    def play(self, unit: int) -> Play:
        if self.repeat:
            return self.plays[(unit - 1) % len(self.plays)]
        return self.plays[unit - 1] if unit <= len(self.plays) else listen()

    def as_prompt(self) -> str:
        return json.dumps(asdict(self) | {"plays": [_play_as_json(play) for play in self.plays]})

    @classmethod
    def of_prompt(cls, prompt: str) -> "Script | None":
        """The script in a system prompt, None if it holds none."""
        try:
            told = json.loads(prompt)
        except ValueError:
            return None
        if not isinstance(told, dict):
            return None
        plays = tuple(_play_of_json(play) for play in told.pop("plays"))
        refuses = told.pop("refuses")
        return cls(plays, refuses=SessionFailed(**refuses) if refuses else None, **told)


def _play_as_json(play: Play) -> dict[str, Any]:
    return asdict(play) | {"end": play.end.name, "finish": play.finish.name if play.finish else None}


def _play_of_json(told: dict[str, Any]) -> Play:
    says = tuple((text, seconds) for text, seconds in told.pop("says"))
    end = End[told.pop("end")]
    finish = Finish[name] if (name := told.pop("finish")) else None
    failures: dict[str, Any] = {name: Failure(**told[name]) for name in ("refused", "failure") if told[name]}
    if told["fails_session"]:
        failures["fails_session"] = SessionFailed(**told["fails_session"])
    return Play(**{**told, **failures, "says": says, "end": end, "finish": finish})


TALK = (listen(), listen(), speak("Hello", " there"), speak(" how are"), turn_end(" you?"))
"""Two units of silence, then a turn of three."""

Call = tuple[Any, ...]


@dataclass
class ScriptedSession:
    """One session of the script. `calls` records what the worker asked for, in order."""

    engine: "ScriptedEngine"
    session_id: str
    slot: int
    setup: SessionSetup
    sink: Sink
    calls: list[Call] = field(default_factory=list)
    script: Script = field(default_factory=Script)
    given: dict[int, Content] = field(default_factory=dict)
    heard: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    seen: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    overrides: dict[int, UnitOverrides] = field(default_factory=dict)
    replayed: dict[int, UnitRecord] = field(default_factory=dict)
    rejected: dict[int, Failure] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    """Units whose last token was to be kept."""
    is_closing: bool = False
    is_closed: bool = False
    _todo: deque[Call] = field(default_factory=deque)
    _ready: bool = False
    _released: set[tuple[str, int]] = field(default_factory=set)
    _held: set[tuple[str, int]] = field(default_factory=set)
    _delayed: set[int] = field(default_factory=set)
    _said: set[int] = field(default_factory=set)
    _cancelled: int = 0
    _tokens: int = PROMPT_TOKENS
    _usage: UnitUsage = field(default_factory=UnitUsage)

    def prefill(self, unit: int, content: Content) -> None:
        self.given[unit] = content
        if isinstance(content, UnitInput):
            self.heard[unit], self.seen[unit] = content.pcm, content.frames
        if self.engine.is_prompted and isinstance(content, TurnInput):
            self.script = Script.of_prompt(_system_text(content)) or self.script
            self.engine.release_early(self)
        self._order("prefill", unit)

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        self.overrides[unit] = overrides
        self._order("generate", unit, force_listen, overrides)

    def reject(self, unit: int, failure: Failure) -> None:
        self.rejected[unit] = failure
        self._order("generate", unit, False, UnitOverrides())

    def finalize(self, unit: int, *, keep_last_token: bool = False) -> None:
        self.kept |= {unit} if keep_last_token else set()
        self._order("finalize", unit)

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        self._order("rewind", unit, heard_samples)

    def cancel(self, unit: int) -> None:
        self.calls.append(("cancel", unit))
        self._cancelled = max(self._cancelled, unit)
        self._go_on()

    def close(self) -> None:
        if not self.is_closing:
            self.calls.append(("close",))
            self.is_closing = True
            if self.script.slow_cleanup and ("clean", 0) not in self._released:
                self.engine.on_hold(self.script.key, "clean", 0)
            elif not self.engine.slow_cleanup:
                self.finish_cleanup()

    @property
    def duplex(self) -> DuplexSetup:
        """Return the session's setup, which must be of full duplex."""
        assert isinstance(self.setup, DuplexSetup)
        return self.setup

    @property
    def context_tokens(self) -> int:
        return self._tokens

    def be_ready(self) -> None:
        self._ready = True
        self._say(Ready(PROMPT_TOKENS))
        self._go_on()

    def release(self, step: str, unit: int) -> None:
        self._released.add((step, unit))
        if (step, unit) == ("ready", 0) and not self._ready:
            self.be_ready()
        if (step, unit) == ("clean", 0) and self.is_closing and not self.is_closed:
            self.finish_cleanup()
        self._go_on()

    def finish_cleanup(self) -> None:
        assert self.is_closing
        assert not self.is_closed
        self.is_closed = True
        self.engine.deliver([(self.sink, [Closed()])])

    def _order(self, *call: Any) -> None:
        self.calls.append(call)
        self._todo.append(call)
        self._go_on()

    def _say(self, *events: Event) -> None:
        if not self.is_closing:
            self.engine.deliver([(self.sink, events)])

    def _go_on(self) -> None:
        while self._ready and self._todo and not self.is_closing:
            step, unit = self._todo[0][:2]
            if not getattr(self, f"_{step}")(unit, *self._todo[0][2:]):
                return
            self._todo.popleft()

    def _holds(self, play: Play, step: str, unit: int) -> bool:
        holds = play.hold == step and (step, unit) not in self._released
        if holds and (step, unit) not in self._held:
            self._held.add((step, unit))
            self.engine.on_hold(self.script.key, step, unit)
        return holds

    def _prefill(self, unit: int) -> bool:
        play = self.script.play(unit)
        if self._holds(play, "prefill", unit):
            return False
        if play.refused is None:
            self._tokens += UNIT_TOKENS
        told = Prefilled(unit, self._tokens, self._spent(), UnitTimings(prefill=0.001), play.refused)
        self._say(replace(told, ignored_fields=_without_effect(self.given[unit])))
        return True

    def _generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> bool:
        play, given = self.script.play(unit), self.given[unit]
        if isinstance(given, UnitInput) and given.recorded is not None:
            self.replayed[unit] = given.recorded
            end = given.recorded.end
            self._say(Done(unit, end, None, self._tokens, record=given.recorded, replayed=True))
            return True
        if play.delay_s and not self._is_due(unit, play.delay_s):
            return False
        is_cancelled = unit <= self._cancelled
        failure = play.refused or self.rejected.get(unit)
        if not (is_cancelled or force_listen or failure or unit in self._said):
            self._said.add(unit)
            for place, (text, seconds) in enumerate(play.says):
                if isinstance(given, TurnInput) and place < len(given.begun):
                    continue
                sampled = (place,) if self._tells_sampled(given) else ()
                ids = (7, 8) if text else ()
                self._say(Piece(unit, text, ids, _tone(seconds), sampled=sampled))
            if play.tells:
                self._say(Piece(unit, self._told(unit)))
        if self._holds(play, "generate", unit) and not is_cancelled:
            return False
        end = End.CANCELLED if is_cancelled else End.LISTEN if force_listen else self._end(unit, play)
        if isinstance(self.setup, DuplexSetup) and 0 < self.engine.info.context_limit <= self._tokens:
            end = End.CONTEXT_FULL  # as the contract has it where no window slides
        failure = failure or (None if is_cancelled else play.failure)
        if play.breaks_device:
            self.engine.break_device()
        if play.stalls_engine:
            self.engine.busy_since = 0.0
            return False
        if play.fails_session is not None:
            self._say(play.fails_session)
        finish = play.finish or Finish.EOS if end in (End.CHUNK, End.TURN) else None
        done = Done(unit, end, finish, self._tokens, self._spent(play.tokens), UnitTimings(total=0.002))
        if isinstance(self.setup, DuplexSetup) and self.setup.records and end is not End.CONTEXT_FULL:
            done = replace(done, record=UnitRecord(end, text_draws=unit))
        self._say(replace(done, end=End.FAILED, finish=None, failure=failure) if failure else done)
        return True

    def _tells_sampled(self, given: Content) -> bool:
        """Whether an answer tells the ids behind it: of this script the places of its pieces."""
        records = isinstance(self.setup, ChatSetup) and self.setup.records
        return records and isinstance(given, TurnInput) and not given.speaks

    def _end(self, unit: int, play: Play) -> End:
        given = self.given[unit]
        if play.end is not End.LISTEN or isinstance(given, UnitInput):
            return play.end
        return End.TURN if isinstance(given, TurnInput) or given.ends else End.CHUNK

    def _told(self, unit: int) -> str:
        units = [self._told_of(number) for number in self.given if number <= unit]
        setup = asdict(self.setup)
        del setup["tenant"]  # it is another in each session
        if not isinstance(self.setup, TranscribeSetup):
            setup["system_prompt"] = ""  # it may be the script itself
        if isinstance(self.setup, ChatSetup):
            del setup["records"]
        if isinstance(self.setup, DuplexSetup):
            setup["window"] = self.setup.window.mode.name
        return json.dumps({"setup": setup, "units": units})

    def _told_of(self, unit: int) -> dict[str, Any]:
        forced = {call[1]: call[2] for call in self.calls if call[0] == "generate"}
        match self.given[unit]:
            case UnitInput() as duplex:
                return {
                    "audio": _levels(duplex.pcm),
                    "frames": [_digest(frame) for frame in duplex.frames],
                    "force_listen": forced.get(unit, False),
                }
            case TurnInput() as turn:
                told = {"messages": [_told_message(message) for message in turn.messages]}
                if turn.tools.offered:
                    told["tools"] = [tool.name for tool in turn.tools.offered]
                settings = {
                    name: value
                    for name, value in vars(turn).items()
                    if name not in ("messages", "tools", "begun")
                }
                return told | settings | {"sampling": self._told_sampling(unit)}
            case StreamInput() as stream:
                chunk = stream.chunk
                return {
                    "chunk": _told_sound(chunk) if isinstance(chunk, np.ndarray) else chunk,
                    "begins": stream.begins,
                    "ends": stream.ends,
                    "sampling": self._told_sampling(unit),
                }

    def _told_sampling(self, unit: int) -> dict[str, Any]:
        overrides = self.overrides.get(unit, UnitOverrides())
        return {name: value for name, value in vars(overrides).items() if value is not None}

    def _is_due(self, unit: int, delay_s: float) -> bool:
        if unit not in self._delayed:
            self._delayed.add(unit)
            asyncio.get_running_loop().call_later(delay_s, self.release, "delay", unit)
        return ("delay", unit) in self._released

    def _finalize(self, unit: int) -> bool:
        if self._holds(self.script.play(unit), "finalize", unit):
            return False
        spent = self._spent(self.script.play(unit).tokens)
        self._usage = UnitUsage(*map(add, astuple(self._usage), astuple(spent)))
        is_stream = isinstance(self.given[unit], StreamInput)
        discarded = int(is_stream and unit not in self.kept and unit in self._said)
        self._say(Finalized(unit, self._tokens, 0, self._usage, discarded_tokens=discarded))
        return True

    def _rewind(self, unit: int, heard_samples: int | None) -> bool:
        self._say(Rewound(unit, self._tokens, 1))
        return True

    def _spent(self, tokens: int = 1) -> UnitUsage:
        return UnitUsage(input_text_tokens=2, input_audio_tokens=10, output_text_tokens=tokens)


def _levels(pcm: NDArray[np.float32]) -> list[float]:
    return [round(float(level), 4) for level in pcm[:: max(1, len(pcm) // 4)]]


def _told_sound(pcm: NDArray[np.float32]) -> dict[str, Any]:
    return {"samples": len(pcm), "audio": _levels(pcm)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _told_message(message: ChatMessage) -> dict[str, Any]:
    parts = [
        part
        if isinstance(part, str)
        else {"picture": _digest(part.data)}
        if isinstance(part, Picture)
        else {"clip": _told_sound(part.pcm)}
        for part in message.parts
    ]
    return {"role": message.role, "parts": parts}


def _system_text(turn: TurnInput) -> str:
    return "".join(
        part for m in turn.messages if m.role == "system" for part in m.parts if isinstance(part, str)
    )


def _tone(seconds: float) -> NDArray[np.float32]:
    count = round(seconds * INFO.output_sample_rate_hz)
    return (0.1 * np.sin(np.arange(count) * 2 * np.pi * 440 / INFO.output_sample_rate_hz)).astype(np.float32)


class ScriptedEngine:
    """Plays `script`, one entry per unit; after its end the model listens, or begins again with `repeat`.

    `sessions` keeps every session for the test, or with `forgetful` those that are open. With `prompted` a
    session whose system prompt is `Script.as_prompt` plays that, and so does a chat turn whose system message
    is one; a session that can have no prompt plays the next of `scripts`.
    """

    def __init__(
        self,
        *script: Play,
        slots: int = 2,
        info: ModelInfo = INFO,
        repeat: bool = False,
        slow_start: bool = False,
        slow_cleanup: bool = False,
        refuses: SessionFailed | None = None,
        forgetful: bool = False,
        prompted: bool = False,
    ) -> None:
        self.script = Script(script, repeat, slow_start, refuses)
        self.info = info
        self.slots = slots
        self.sessions: list[ScriptedSession] = []
        self.is_stopped = False
        self.busy_since: float | None = None
        self.slow_cleanup = slow_cleanup
        self.pages = (0, 0, 0, 0)
        """Used, cached and free, and tokens of prefixes found."""
        self.late = (0, 0)
        """Captures and compilations in service."""
        self._forgetful = forgetful
        self.is_prompted = prompted
        self.scripts: deque[Script] = deque()
        self._released_early: list[tuple[str, str, int]] = []
        self.deliver: Deliver = lambda events: None
        self._on_fatal: OnFatal = lambda message: None
        self.on_ticks: OnTicks = lambda ticks: None
        self.on_hold: Callable[[str, str, int], None] = lambda key, step, unit: None
        """Called when the session with a key begins to wait for the release of a step of a unit."""

    @property
    def session(self) -> ScriptedSession:
        return self.sessions[-1]

    def start(self, options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> "ScriptedEngine":
        self.deliver, self._on_fatal = deliver, on_fatal
        return self

    def watch(self, on_ticks: OnTicks) -> None:
        self.on_ticks = on_ticks

    def occupancy(self) -> Occupancy:
        used = sum(session.context_tokens for session in self.sessions if not session.is_closed)
        return Occupancy(used, self.slots * self.info.context_limit, None, *self.pages, *self.late)

    def release(self, key: str, step: str, unit: int) -> None:
        """Let a unit that is held in `step` continue, in the session that the test calls `key`.

        It is the open one, else the next one.
        """
        found = [
            s
            for s in self.sessions
            if s.script.key == key and not s.is_closed and (step == "clean" or not s.is_closing)
        ]
        for session in found:
            session.release(step, unit)
        if not found:
            self._released_early.append((key, step, unit))

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> ScriptedSession:
        live = [session for session in self.sessions if not session.is_closed]
        assert slot < self.slots
        assert slot not in {session.slot for session in live}, "a slot was given away before it was clean"
        if self._forgetful:
            self.sessions = live
        session = ScriptedSession(self, session_id, slot, setup, sink, script=self._script_of(setup))
        self.sessions.append(session)
        if session.script.refuses is not None:
            self.deliver([(sink, [session.script.refuses])])
        elif not session.script.slow_start:
            session.be_ready()
        else:
            self.on_hold(session.script.key, "ready", 0)
        self.release_early(session)
        return session

    def release_early(self, session: ScriptedSession) -> None:
        for early in [early for early in self._released_early if early[0] == session.script.key]:
            self._released_early.remove(early)
            session.release(*early[1:])

    def _script_of(self, setup: SessionSetup) -> Script:
        if isinstance(setup, TranscribeSetup):
            return self.scripts.popleft() if self.scripts else self.script
        prompted = Script.of_prompt(setup.system_prompt) if self.is_prompted else None
        return prompted or self.script

    def break_device(self) -> None:
        self._on_fatal("CUDA error: canary-4711")

    def stop(self) -> None:
        self.is_stopped = True


@dataclass(frozen=True)
class RunningWorker:
    address: str
    worker: Worker
    run: "asyncio.Task[int]"


PATIENT = Limits(
    attach_s=PATIENCE_S, config_s=PATIENCE_S, unit_s=PATIENCE_S, cleanup_s=PATIENCE_S, step_s=PATIENCE_S
)
"""No deadline strikes because the machine is slow."""

Factory = Callable[[WorkerOptions, Deliver, OnFatal], Engine]


def telemetry(*exporters: SpanExporter, **environ: str) -> Telemetry:
    """A worker's telemetry as it is by default, but for the variables given; spans also go to `exporters`."""
    return providers.start(SERVICE_WORKER, environ, span_exporters=exporters)


@asynccontextmanager
async def running_worker(
    engine: ScriptedEngine | Factory,
    *,
    limits: Limits | None = None,
    observed: Telemetry | None = None,
    **options: Any,
) -> AsyncIterator[RunningWorker]:
    """A real gRPC server round `engine`, on a free port of loopback; ended at once on leaving the block."""
    factory = engine.start if isinstance(engine, ScriptedEngine) else engine
    worker = Worker(
        WorkerOptions(**{"listen": "127.0.0.1:0", **options}),
        factory,
        limits or PATIENT,
        observed or telemetry(),
    )
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    run = asyncio.create_task(worker.run(ready.set_result))
    try:
        either: set[asyncio.Future[Any]] = {ready, run}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            run.result()
        yield RunningWorker(await ready, worker, run)
    finally:
        worker.interrupt()
        worker.interrupt()
        await asyncio.wait({run}, timeout=PATIENCE_S)
        assert run.done(), "the worker did not stop"
