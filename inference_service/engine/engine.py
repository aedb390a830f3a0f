"""The engine: one thread that owns the device and runs the units of all sessions tick by tick."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    UnitOverrides,
    Window,
    WindowMode,
)
from inference_service.engine.context import Context
from inference_service.engine.conversation import Conversation, PendingUnit
from inference_service.engine.inbox import Inbox
from inference_service.engine.runtime import Runtime
from inference_service.engine.sampler import TextSampler
from inference_service.engine.speech import SpeechState
from inference_service.engine.tick import Tick
from inference_service.engine.warmup import warm_up
from inference_service.media.mel import CONTEXT, SAMPLE_RATE, log_mel, mel_power
from inference_service.models.config import ModelConfig
from inference_service.models.duplex import DuplexModel
from inference_service.models.tokenizer import Tokenizer
from inference_service.options import WorkerOptions

Array = NDArray[np.float32]


class LiveSession:
    """The engine's side of `EngineSession`: orders travel to the engine thread in the order given.

    Mel features are computed on the media thread, through which the orders of units pass so that
    they keep their order. A cancel and a close go straight to the engine.
    """

    def __init__(self, engine: "LiveEngine", conversation: Conversation) -> None:
        self._engine = engine
        self._conversation = conversation
        self._heard = np.zeros(CONTEXT, np.float32)
        self._closed = False

    def prefill(self, unit: int, pcm: Array) -> None:
        arrival = time.monotonic()
        self._engine.media.submit(self._hear, unit, pcm, arrival)

    def _hear(self, unit: int, pcm: Array, arrival: float) -> None:
        pcm = np.pad(pcm, (0, SAMPLE_RATE - len(pcm)))
        mel = log_mel(mel_power(pcm, self._heard))
        self._heard = pcm[-CONTEXT:].copy()
        pending = PendingUnit(unit, torch.from_numpy(mel), arrival)
        self._engine.inbox.put(lambda: self._conversation.units.append(pending))

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        order = self._conversation.order_generate
        self._order(lambda: order(unit, force_listen, overrides))

    def finalize(self, unit: int) -> None:
        self._order(lambda: self._conversation.order_finalize(unit))

    def _order(self, order: Callable[[], None]) -> None:
        self._engine.media.submit(self._engine.inbox.put, order)

    def cancel(self, unit: int) -> None:
        self._engine.inbox.put(lambda: self._conversation.cancel(unit))

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
        self._config = config
        self._slots = slots
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._runtime = Runtime(model, tokenizer, config, slots)
        self._free = list(range(slots))
        self._conversations: dict[int, Conversation] = {}
        self.inbox = Inbox()
        self.media = ThreadPoolExecutor(1, "media")
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name=self._config.name,
            context_limit=self._config.context_limit,
            input_sample_rate_hz=SAMPLE_RATE,
            output_sample_rate_hz=self._config.vocoder.sample_rate_hz,
            unit_seconds=1.0,
            duplex_defaults=DuplexSettings(**self._config.duplex_defaults),
            window=Window(WindowMode.BASIC, self._config.window_high, self._config.window_low),
        )

    @property
    def slots(self) -> int:
        return self._slots

    def open(self, session_id: str, setup: SessionSetup, sink: Sink) -> EngineSession:
        slot = self._free.pop()
        runtime = self._runtime
        conversation = Conversation(
            session_id,
            slot,
            setup,
            sink,
            runtime.tokenizer,
            Context(runtime.language, slot, setup.window),
            runtime.model.apm.initial_state(),
            TextSampler(
                runtime.tokenizer.special, runtime.forbidden, torch.Generator().manual_seed(setup.seed)
            ),
            SpeechState(slot, torch.Generator().manual_seed(setup.seed)),
            runtime.model.vocoder.initial_state(setup.seed),
            self._config.context_limit,
            runtime.unit_tokens,
        )
        self.inbox.put(lambda: self._begin(conversation))
        return LiveSession(self, conversation)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.inbox.put(lambda: None)
        self._thread.join(timeout=10)
        self.media.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ on the engine thread

    def _begin(self, conversation: Conversation) -> None:
        self._conversations[conversation.slot] = conversation
        refusal = self._runtime.start_prompt(conversation)
        if refusal is not None:
            conversation.events.append(SessionFailed("CONFIG_INVALID", refusal))

    def release(self, conversation: Conversation) -> None:
        """Forgets a session: its caches are emptied before its slot is offered again."""
        slot = conversation.slot
        if self._conversations.pop(slot, None) is None:
            return
        self._runtime.clear(slot)
        self._free.append(slot)
        self._deliver([(conversation.sink, Closed())])

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            tick = Tick(self._runtime)
            while not self._stopped:
                for order in self.inbox.take(wait=not tick.has_work(self._conversations.values())):
                    order()
                tick.run(self._conversations.values())
                self._flush()
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _flush(self) -> None:
        batch = []
        for conversation in self._conversations.values():
            batch += [(conversation.sink, event) for event in conversation.events]
            conversation.events.clear()
        if batch:
            self._deliver(batch)

    def _fail(self, message: str) -> None:
        failure = SessionFailed("ENGINE_FATAL", "The model's device state is lost; the worker ends.")
        self._deliver([(c.sink, failure) for c in self._conversations.values()])
        self._on_fatal(message)


def load_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    """Loads the checkpoint that `options` name, starts the engine and warms it up.

    Raises `CheckpointError` if the checkpoint cannot be used.
    """
    torch.set_num_threads(options.threads or 1)
    model, tokenizer, config = load(find(options.model), torch.device(options.device))
    warm_up(Runtime(model, tokenizer, config, 1))
    return LiveEngine(model, tokenizer, config, options.slots, deliver, on_fatal)
