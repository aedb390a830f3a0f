"""Every engine that chats and continues token streams, over one folder."""

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_service.engine.engine import LiveEngine
from inference_service.engine_vllm import loading
from inference_service.engine_vllm.engine import VllmEngine
from inference_service.engine_vllm.folder import RunningVllm
from inference_service.engine_vllm.loading import load_engine as load_vllm
from inference_service.engine_vllm.loading import read_served
from inference_service.engine_vllm.loop import LoopThread
from inference_service.families import table
from inference_service.interface.engine import (
    Closed,
    Deliver,
    Engine,
    EngineInfo,
    Event,
    Finalized,
    OnFatal,
)
from inference_service.interface.setups import (
    NO_OVERRIDES,
    ChatMessage,
    ChatSetup,
    Sampling,
    SessionSetup,
    StreamInput,
    Tenant,
    TokensSetup,
    TranscribeSetup,
    TurnInput,
    UnitOverrides,
)
from inference_service.options import WorkerOptions
from tests.inference_service.engine.support import tiny_causal
from tests.inference_service.engine.support.talk import Said
from tests.inference_service.engine_vllm.support.plain_ear import PlainEar
from tests.inference_service.engine_vllm.support.plain_generator import PlainGenerator
from tests.support.long import long
from tests.support.patience import PATIENCE_S

LIMIT = 95
"""Tokens of a context."""
SLOTS = 3
PLAIN_AND_VLLM = ("plain", pytest.param("vllm", marks=long))
"""The vLLM engine over a model of transformers, and over vLLM itself."""
ALL = ("antiphon", *PLAIN_AND_VLLM)
"""Ours too."""
MISSING = "vLLM is not installed here: make vllm"
HAS_VLLM = find_spec("vllm") is not None
GREEDY = Sampling(max_new_tokens=4, temperature=0.0, top_p=1.0, ignore_eos=True)
LONG = replace(GREEDY, max_new_tokens=80)
SIZES: dict[str, Any] = {
    "head_dim": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
}
"""vLLM has kernels for no smaller heads."""


def save(folder: Path, kind: str = "qwen3", **changes: Any) -> Path:
    """Write a tiny model that all engines serve."""
    return tiny_causal.save(folder, kind, **{**SIZES, **changes})


@dataclass
class Talker:
    """One session of an engine, and what it was told."""

    engine: Engine
    setup: SessionSetup
    slot: int = 0
    told: "queue.Queue[Event]" = field(default_factory=queue.Queue)
    events: list[Event] = field(default_factory=list)
    units: int = 0

    def __post_init__(self) -> None:
        self.session = self.engine.open(f"session-{self.slot}", self.slot, self.setup, self._hear)

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            self.told.put(event)

    def until(self, kind: type[Any], unit: int | None = None) -> Any:
        """Wait for an event, of a unit where one is named."""
        while True:
            event = self.told.get(timeout=PATIENCE_S)
            self.events.append(event)
            if isinstance(event, kind) and unit in (None, getattr(event, "unit", None)):
                return event

    def send(self, content: StreamInput | TurnInput, overrides: UnitOverrides = NO_OVERRIDES) -> int:
        """Send a unit with its order to generate."""
        self.units += 1
        self.session.prefill(self.units, content)
        self.session.generate(self.units, False, overrides)
        return self.units

    def chunk(
        self, ids: Sequence[int] | str | None, *, keep: bool = False, begins: bool = False, **settings: Any
    ) -> "Unit":
        """Append a chunk, and wait for all that comes of it."""
        chunk = ids if ids is None or isinstance(ids, str) else tuple(ids)
        number = self.send(StreamInput(chunk, begins), UnitOverrides(**settings))
        self.session.finalize(number, keep_last_token=keep)
        return self.over(number)

    def turn(self, text: str, **settings: Any) -> "Unit":
        """Say something, and wait for all that comes of it."""
        number = self.send(turn(text), UnitOverrides(**settings))
        return self.finish(number)

    def finish(self, number: int) -> "Unit":
        """Order a unit to be closed, and wait for all that comes of it."""
        self.session.finalize(number)
        return self.over(number)

    def over(self, number: int) -> "Unit":
        """Wait until a unit is closed."""
        self.until(Finalized, number)
        return Unit([event for event in self.events if getattr(event, "unit", None) == number])

    def close(self) -> None:
        """End the session, and see that nothing comes after its last event."""
        self.session.close()
        self.until(Closed)
        assert self.told.empty()


def turn(text: str, **settings: Any) -> TurnInput:
    """Return a user's turn with this text."""
    return TurnInput((ChatMessage("user", (text,)),), **settings)


class Unit(Said):
    """The events of one unit."""

    def one(self, kind: type[Any]) -> Any:
        """The only event of a kind, whose optional fields are taken as set."""
        return super().one(kind)


@dataclass
class Rig:
    """A running engine."""

    name: str
    engine: Engine
    fatal: "queue.Queue[str]"
    generator: Any = None
    """The generator over transformers; None for other engines."""

    def stream(self, slot: int = 0, sampling: Sampling = GREEDY, **settings: Any) -> Talker:
        """Open a token stream."""
        return self._open(slot, TokensSetup(sampling, **{"seed": 1, "tenant": Tenant(b"a"), **settings}))

    def chat(self, slot: int = 0, sampling: Sampling = GREEDY, **settings: Any) -> Talker:
        """Open a chat."""
        return self._open(slot, ChatSetup(sampling, **{"seed": 1, "tenant": Tenant(b"a"), **settings}))

    def transcription(self, slot: int = 0, **settings: Any) -> Talker:
        """Open a transcription."""
        sampling = settings.pop("sampling", Sampling(max_new_tokens=1000, temperature=0.0, top_p=1.0))
        return self._open(slot, TranscribeSetup(sampling, **{"seed": 1, "tenant": Tenant(b"a"), **settings}))

    def _open(self, slot: int, setup: SessionSetup) -> Talker:
        return Talker(self.engine, setup, slot)


def deliver(batch: list[tuple[Callable[[Any], None], Any]]) -> None:
    """Hand events to their sinks at once."""
    for sink, told in batch:
        sink(told)


def start(name: str, folder: Path, limit: int = LIMIT, tensor_parallel_size: int = 1) -> Rig:
    """Start an engine over the folder; only vLLM spreads it over processes."""
    fatal: queue.Queue[str] = queue.Queue()
    hears = (folder / "params.json").exists()
    if name == "antiphon":
        build = table.load(folder, torch.device("cpu"), None if hears else limit)
        return Rig(name, LiveEngine(build(SLOTS), SLOTS, deliver, fatal.put), fatal)
    if name == "plain":
        generator = plain_generator(folder, limit)
        return Rig(name, assemble(folder, generator, deliver, fatal.put), fatal, generator)
    options = WorkerOptions(
        engine="vllm",
        model=str(folder),
        dtype="float32",
        slots=SLOTS,
        context_limit=limit,
        compile="off",
        tensor_parallel_size=tensor_parallel_size,
    )
    return Rig(name, load_vllm(options, deliver, fatal.put), fatal)


@contextmanager
def serving(name: str, folder: Path, limit: int = LIMIT, tensor_parallel_size: int = 1) -> Iterator[Rig]:
    """Serve a folder, and stop without a fatal error; skips the test where the engine is not installed."""
    if name == "vllm" and not HAS_VLLM:
        pytest.skip(MISSING)
    rig = start(name, folder, limit, tensor_parallel_size)
    try:
        yield rig
    finally:
        rig.engine.stop()
    assert rig.fatal.empty()


def plain_generator(folder: Path, limit: int = LIMIT) -> Any:
    """Return a generator over transformers, for contexts of so many tokens."""
    hears = (folder / "params.json").exists()
    return PlainEar(folder, limit + 1) if hears else PlainGenerator(folder, limit + 1)


def assemble(folder: Path, generator: Any, deliver: Deliver, on_fatal: OnFatal) -> VllmEngine:
    """Return the vLLM engine over such a generator."""
    info = EngineInfo("vllm", "0", "cpu")
    vllm = RunningVllm(generator, LoopThread("engine"), info, SLOTS, deliver, on_fatal)
    return read_served(folder).assemble(vllm)


def limit_cache(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """Give the vLLM that starts next a cache of so many blocks, one of which stays empty."""
    arguments = loading.engine_arguments
    monkeypatch.setattr(
        loading,
        "engine_arguments",
        lambda *given, **named: {**arguments(*given, **named), "num_gpu_blocks_override": blocks},
    )
