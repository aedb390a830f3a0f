"""The engine: one thread that owns the device and runs the units of all sessions tick by tick."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from inference_service.checkpoint import find, load
from inference_service.engine.api import (
    Closed,
    Deliver,
    DuplexSettings,
    Engine,
    EngineSession,
    ModelInfo,
    OnFatal,
    SessionFailed,
    SessionSetup,
    Sink,
    UnitInput,
    UnitOverrides,
    Window,
    WindowMode,
)
from inference_service.engine.conversation import Conversation
from inference_service.engine.inbox import Inbox
from inference_service.engine.orders import PendingUnit
from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.engine.warmup import warm_up
from inference_service.errors import ConfigurationError, UnitRefused
from inference_service.media.image import Pixels, decode_frame
from inference_service.media.mel import BANDS, CONTEXT, SAMPLE_RATE, log_mel, mel_power
from inference_service.models.config import ModelConfig
from inference_service.models.duplex import DuplexModel
from inference_service.models.errors import CheckpointError
from inference_service.models.tokenizer import Tokenizer
from inference_service.options import WorkerOptions

Array = NDArray[np.float32]

_FATAL = SessionFailed("ENGINE_FATAL", "The model's device state is lost; the worker ends.")


class LiveSession:
    """The engine's side of `EngineSession`: orders travel to the engine thread in the order given.

    Mel features are computed and pictures decoded on the media thread, through which the orders of units
    pass so that they keep their order. A cancel and a close go straight to the engine.
    """

    def __init__(self, engine: "LiveEngine", conversation: Conversation) -> None:
        self._engine = engine
        self._conversation = conversation
        self._orders = conversation.orders
        self._heard = np.zeros(CONTEXT, np.float32)
        self._closed = False

    def prefill(self, unit: int, content: UnitInput) -> None:
        if len(content.pcm) > SAMPLE_RATE:
            raise ValueError(f"A unit has at most {SAMPLE_RATE} samples, not {len(content.pcm)}.")
        arrival = time.monotonic()
        self._engine.media.submit(self._perceive, unit, content, arrival)

    def _perceive(self, unit: int, content: UnitInput, arrival: float) -> None:
        try:
            pictures = tuple(torch.from_numpy(picture) for picture in self._engine.look(content.frames))
            pending = PendingUnit(unit, torch.from_numpy(self._hear(content.pcm)), arrival, pictures)
        except UnitRefused as refused:
            pending = PendingUnit(unit, torch.zeros(0, BANDS), arrival, failure=refused.failure)
        self._engine.inbox.put(lambda: self._orders.prefill(pending))

    def _hear(self, pcm: Array) -> Array:
        pcm = np.pad(pcm, (0, SAMPLE_RATE - len(pcm)))
        mel = log_mel(mel_power(pcm, self._heard))
        # Sound that is none spoils its own unit only, not the next one's first frames.
        self._heard = np.clip(np.nan_to_num(pcm[-CONTEXT:]), -1, 1)
        return mel

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        self._follow(lambda: self._orders.generate(unit, force_listen, overrides))

    def finalize(self, unit: int) -> None:
        self._follow(lambda: self._orders.finalize(unit))

    def _follow(self, order: Callable[[], None]) -> None:
        self._engine.media.submit(self._engine.inbox.put, order)

    def cancel(self, unit: int) -> None:
        self._engine.inbox.put(lambda: self._orders.cancel(unit))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.inbox.put(lambda: self._engine.release(self._conversation))


class LiveEngine:
    """A loaded model and its loop. Implements `Engine`."""

    def __init__(
        self,
        model: DuplexModel,
        tokenizer: Tokenizer,
        config: ModelConfig,
        slots: int,
        deliver: Deliver,
        on_fatal: OnFatal,
    ) -> None:
        self._info = model_info(config)
        self._side = config.vision.image_size if config.vision else 0
        self._slots = slots
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._runtime = Runtime(model, tokenizer, config, slots)
        self._free = list(range(slots))
        self._conversations: dict[int, Conversation] = {}
        self.inbox = Inbox()
        self.media = ThreadPoolExecutor(1, "media")
        self._is_dead = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def slots(self) -> int:
        return self._slots

    def open(self, session_id: str, setup: SessionSetup, sink: Sink) -> EngineSession:
        conversation = self._runtime.conversation(session_id, self._free.pop(), setup, sink)
        self.inbox.put(lambda: self._begin(conversation))
        return LiveSession(self, conversation)

    def look(self, frames: Sequence[bytes]) -> list[Pixels]:
        """The pictures in `frames` as the model sees them. For the media thread; raises `UnitRefused`."""
        if frames and not self._side:
            raise ValueError("This model has no vision encoder.")
        return [
            decode_frame(data, field=f"duplex.frames[{i}]", side=self._side) for i, data in enumerate(frames)
        ]

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.inbox.put(lambda: None)
        self._thread.join(timeout=10)
        self.media.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ on the engine thread

    @torch.inference_mode()
    def _run(self) -> None:
        tick = Tick(self._runtime)
        while not self._stopped:
            try:
                self._turn(tick)
            except Exception as error:
                self._die(f"{type(error).__name__}: {error}")

    def _turn(self, tick: Tick) -> None:
        """Whatever orders have come, then one tick. A dead engine only follows orders."""
        sessions = self._conversations.values()
        wait = self._is_dead or not tick.has_work(sessions)
        while (order := self.inbox.take(wait)) is not None:
            order()
            wait = False
        if not self._is_dead:
            tick.run(sessions)
        self._flush()

    def _begin(self, conversation: Conversation) -> None:
        self._conversations[conversation.slot] = conversation
        refusal = _FATAL if self._is_dead else self._runtime.start_prompt(conversation)
        if refusal is not None:
            conversation.events.append(refusal)

    def release(self, conversation: Conversation) -> None:
        """Forgets a session: its caches are emptied before its slot is offered again."""
        if not self._is_dead:
            self._runtime.clear(conversation.slot)
        del self._conversations[conversation.slot]
        self._free.append(conversation.slot)
        self._deliver([(conversation.sink, Closed())])

    def _flush(self) -> None:
        batch = []
        for conversation in self._conversations.values():
            batch += [(conversation.sink, event) for event in conversation.events]
            conversation.events.clear()
        if batch:
            self._deliver(batch)

    def _die(self, message: str) -> None:
        """The device cannot be trusted any more: every session is told, and whoever still comes."""
        if not self._is_dead:
            self._is_dead = True
            try:
                self._deliver([(c.sink, _FATAL) for c in self._conversations.values()])
            finally:
                self._on_fatal(message)


def model_info(config: ModelConfig) -> ModelInfo:
    """What sessions are told about a model. Raises `CheckpointError` for defaults that are no settings."""
    try:
        defaults = DuplexSettings(**config.duplex_defaults)
    except TypeError as error:
        raise CheckpointError(f"config.json has unknown duplex defaults: {error}.") from None
    return ModelInfo(
        name=config.name,
        context_limit=config.context_limit,
        input_sample_rate_hz=SAMPLE_RATE,
        output_sample_rate_hz=config.vocoder.sample_rate_hz,
        unit_seconds=1.0,
        duplex_defaults=defaults,
        window=Window(WindowMode.BASIC, config.window_high, config.window_low),
        sees=config.vision is not None,
    )


def limited(config: ModelConfig, context_limit: int) -> ModelConfig:
    """`config` with a smaller context. Raises `ConfigurationError` if it would be a larger one."""
    if context_limit > config.context_limit:
        raise ConfigurationError(
            f"context_limit must be at most the model's {config.context_limit}, not {context_limit}."
        )
    return replace(
        config,
        context_limit=context_limit,
        window_high=min(config.window_high, context_limit),
        window_low=min(config.window_low, context_limit * 3 // 4),
    )


def usable_device(name: str) -> torch.device:
    """The device of that name. Raises `ConfigurationError` if this machine or build of torch has none."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # the latter is what a build without CUDA says
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigurationError(
            f"Cannot use the device {name!r} ({reason}). Pass --device cpu, or one that torch can use here."
        ) from None
    return device


def load_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    """Loads the checkpoint that `options` name, starts the engine and warms it up.

    Raises `CheckpointError` if the checkpoint cannot be used, `ConfigurationError` if the device cannot.
    """
    torch.set_num_threads(options.threads or 1)
    model, tokenizer, config = load(find(options.model), usable_device(options.device))
    if options.context_limit is not None:
        config = limited(config, options.context_limit)
    warm_up(Runtime(model, tokenizer, config, 1))
    return LiveEngine(model, tokenizer, config, options.slots, deliver, on_fatal)
