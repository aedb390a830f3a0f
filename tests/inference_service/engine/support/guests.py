"""Random sessions of every kind that open and close over time, and their events."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.interface.engine import Done, Event, Finalized, ModelInfo, Piece, Prefilled, UnitUsage
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Content,
    DuplexSetup,
    Mode,
    Picture,
    Sampling,
    SessionSetup,
    StreamInput,
    TokensSetup,
    TranscribeSetup,
    TurnInput,
    UnitInput,
    UnitOverrides,
    Window,
    WindowMode,
)
from inference_service.session.base.session import Session, Stage
from tests.inference_service.engine.support.talk import Said, write_ahead
from tests.support.drawing import jpeg

Sound = NDArray[np.float32]
_WORDS = ("who", "are", "you", "seven", "Plus", "<|im_end|>", "née", "🙂")


def noise(rng: random.Random, seconds: float) -> Sound:
    sound = np.random.default_rng(rng.randrange(2**32)).standard_normal(round(seconds * 16_000))
    return np.asarray(sound * rng.uniform(0.01, 0.3), dtype=np.float32)


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(1, 30)))


def picture(rng: random.Random) -> bytes:
    return jpeg(rng.choice(["red", "blue"]), rng.choice(["circle", "square"]), (64, 48))


def fed_or_found(usage: UnitUsage) -> UnitUsage:
    return replace(usage, cached_tokens=0)


@dataclass
class Guest:
    """A session with its units and its events; a `passing` one closes early."""

    setup: SessionSetup
    units: list[tuple[Content, UnitOverrides]]
    passing: bool = False
    session: Session[Any] | None = None
    told: list[Event] = field(default_factory=list)
    sent: int = 0

    def enter(self, runtime: Runtime, slot: int) -> None:
        self.session = runtime.open("guest", slot, self.setup, lambda event: None)
        assert runtime.start(self.session) is None

    def send(self) -> None:
        """Queue the next unit."""
        assert self.session
        content, overrides = self.units[self.sent]
        self.sent += 1
        write_ahead(self.session, self.sent, content, overrides=overrides, finalize=True)

    def listen(self) -> None:
        """Collect the new events of the session."""
        assert self.session
        self.told += self.session.events
        self.session.events.clear()

    @property
    def has_more(self) -> bool:
        """Whether it has a unit to send, and fewer than two in flight."""
        closed = sum(isinstance(event, Finalized) for event in self.told)
        return self.sent < len(self.units) and self.sent - closed < 2

    @property
    def is_over(self) -> bool:
        """Whether its last unit is closed."""
        closed = sum(isinstance(event, Finalized) for event in self.told)
        return closed == len(self.units) and self.session is not None and self.session.stage is Stage.IDLE

    def summary(self) -> list[object]:
        """Return the events without times, audio and cached tokens."""
        result: list[object] = []
        for event in self.told:
            match event:
                case Prefilled(unit, tokens, usage, _, failure):
                    result.append(("heard", unit, tokens, fed_or_found(usage), failure))
                case Piece(unit, text, ids):
                    result.append(("piece", unit, text, ids))
                case Done(unit, end, finish, tokens, usage, _, failure):
                    result.append(("done", unit, end, finish, tokens, fed_or_found(usage), failure))
                case Finalized(unit, tokens, dropped, usage):
                    result.append(("closed", unit, tokens, dropped, fed_or_found(usage)))
        return result

    @property
    def sound(self) -> Sound:
        return Said(self.told).sound


def conversing(rng: random.Random, info: ModelInfo) -> Guest:
    window = rng.choice([Window(), Window(WindowMode.BASIC, 200, 160)])
    if window.mode not in info.windows:
        window = info.window
    prompt = rng.choice(["Be brief.", "Hi."])
    shortest = min((info.unit_format, *info.other_formats), key=lambda it: it.seconds)
    seed, sees = rng.randrange(2**63), info.sees
    setup = DuplexSetup(prompt, info.duplex_defaults, window, seed, sees=sees, format=shortest)
    units: list[tuple[Content, UnitOverrides]] = []
    for _ in range(rng.randint(2, 4)):
        frames = tuple(picture(rng) for _ in range(rng.choice([0, 0, 1, 2] if info.sees else [0])))
        seconds = rng.uniform(0.5, 1) * shortest.samples / 16_000
        units.append((UnitInput(noise(rng, seconds), frames), UnitOverrides()))
    return Guest(setup, units)


def chatting(rng: random.Random, info: ModelInfo) -> Guest:
    sampling = Sampling(
        max_new_tokens=rng.randint(1, 25),
        temperature=rng.choice([0.0, 0.7, 1.3]),
        top_p=rng.choice([0.8, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        stop=rng.choice([(), ("e", "the end"), ("ing",)]),
    )
    units: list[tuple[Content, UnitOverrides]] = []
    for _ in range(rng.randint(1, 3)):
        parts: list[str | Picture | Clip] = [words(rng)]
        if info.sees:
            parts += [Picture(picture(rng)) for _ in range(rng.choice([0, 0, 1, 6]))]
        if info.input_sample_rate_hz:
            parts += [Clip(noise(rng, rng.uniform(0.2, 10))) for _ in range(rng.choice([0, 0, 1]))]
        rng.shuffle(parts)
        turn = TurnInput((ChatMessage("user", tuple(parts)),), speaks=info.speaks and rng.random() < 0.5)
        units.append((turn, UnitOverrides(seed=rng.choice([None, 5]))))
    return Guest(ChatSetup(sampling, rng.randrange(2**63), words(rng)), units)


def dictating(rng: random.Random, info: ModelInfo) -> Guest:
    sampling = Sampling(
        max_new_tokens=10_000, temperature=rng.choice([0.0, 1.0]), top_p=1.0, length_penalty=0.1
    )
    units: list[tuple[Content, UnitOverrides]] = []
    for _ in range(rng.randint(1, 2)):
        chunks = [noise(rng, rng.uniform(0, 2.5)) for _ in range(rng.randint(1, 4))]
        for i, chunk in enumerate(chunks):
            spoken = StreamInput(chunk, begins=i == 0, ends=i == len(chunks) - 1)
            units.append((spoken, UnitOverrides()))
    return Guest(TranscribeSetup(sampling, rng.randrange(2**63)), units)


def streaming(rng: random.Random, info: ModelInfo) -> Guest:
    sampling = Sampling(max_new_tokens=rng.randint(1, 12), temperature=rng.choice([0.0, 1.0]), top_p=1.0)
    units: list[tuple[Content, UnitOverrides]] = []
    for _ in range(rng.randint(1, 4)):
        chunk = (
            words(rng)
            if rng.random() < 0.5
            else tuple(rng.choices(range(min(600, info.vocabulary)), k=rng.randint(1, 40)))
        )
        units.append((StreamInput(chunk), UnitOverrides(max_new_tokens=rng.choice([None, 3]))))
    return Guest(TokensSetup(sampling, rng.randrange(2**63), words(rng)), units)


MAKERS: dict[Mode, Callable[[random.Random, ModelInfo], Guest]] = {
    Mode.AUDIO: conversing,
    Mode.CHAT: chatting,
    Mode.TRANSCRIBE: dictating,
    Mode.TOKENS: streaming,
}


def guests(info: ModelInfo, seed: int, count: int) -> list[Guest]:
    """Return random sessions of all kinds that the model supports; some close early."""
    rng = random.Random(seed)
    makers = [make for mode, make in MAKERS.items() if mode in info.modes]
    crowd = [makers[i % len(makers)](rng, info) for i in range(count)]
    rng.shuffle(crowd)
    for guest in rng.sample(crowd, count // 8):
        guest.passing = True
    return crowd


def play(runtime: Runtime, waiting: list[Guest], rng: random.Random, slots: list[int]) -> None:
    """Let guests join free slots at random times, send their units at random, and leave."""
    tick = Tick(runtime, budget=rng.choice([5, 32, 1024]))
    free, present = list(slots), dict[int, Guest]()
    while waiting or present:
        if waiting and free and (not present or rng.random() < 0.2):
            slot = free.pop(rng.randrange(len(free)))
            present[slot] = waiting.pop(0)
            present[slot].enter(runtime, slot)
        for guest in present.values():
            if guest.has_more and rng.random() < 0.3:
                guest.send()
        tick.run([guest.session for guest in present.values() if guest.session])
        for slot, guest in list(present.items()):
            guest.listen()
            if guest.is_over or (guest.passing and guest.sent and rng.random() < 0.05):
                runtime.clear(slot)
                del present[slot]
                free.append(slot)
