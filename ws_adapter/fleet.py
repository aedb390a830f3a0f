"""The workers an adapter knows: one channel to each, watched until the adapter ends."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import grpc
import grpc.aio

from antiphon.semconv import CLIENT_OPTIONS
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub
from ws_adapter.dialects.config import Catalogue
from ws_adapter.dialects.render import OUTPUT_RATE_HZ
from ws_adapter.dialects.voice import RATE_HZ

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 2.0

_RECONNECT: Final = (
    # gRPC's own backoff reaches two minutes, in which a restarted worker would stay unseen.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker that takes sessions says about itself."""

    worker_id: str
    model: str
    slots: int
    voices: frozenset[str]


@dataclass(frozen=True)
class Pace:
    """How often a worker is asked, in seconds; between failures the time doubles from `retry_s` on."""

    ask_s: float = 1.0
    retry_s: float = 0.1
    longest_retry_s: float = 2.0


class Condition(StrEnum):
    """How a worker is."""

    READY = "ready"
    LOADING = "loading"
    UNFIT = "unfit"
    """It answers, but cannot serve what this adapter needs."""
    OFFLINE = "offline"
    """It does not answer, or is about to leave."""


class Worker:
    """One worker. `info` is None while it is not ready."""

    def __init__(self, target: str, pace: Pace, changed: Callable[[], None]) -> None:
        self.target = target
        self.info: WorkerInfo | None = None
        self.condition = Condition.OFFLINE
        self.channel = grpc.aio.insecure_channel(target, options=(*CLIENT_OPTIONS, *_RECONNECT))
        self._pace = pace
        self._changed = changed
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to watch."""
        self._tasks = [asyncio.create_task(self._ask()), asyncio.create_task(self._watch_connection())]

    async def stop(self) -> None:
        """Ends watching and closes the channel."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.channel.close()

    def suspect(self) -> None:
        """The worker failed a session: gives it none until it has answered again."""
        self.condition = Condition.OFFLINE
        self._know(None)
        self._news.set()

    async def _ask(self) -> None:
        stub = InferenceServiceStub(self.channel)
        retry_s = self._pace.retry_s
        while True:
            self._news.clear()
            try:
                answer: pb.GetInfoResponse = await stub.GetInfo(pb.GetInfoRequest(), timeout=ASK_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                self.condition = Condition.OFFLINE
                self._know(None)
                await asyncio.sleep(retry_s * random.uniform(0.8, 1.2))
                retry_s = min(retry_s * 2, self._pace.longest_retry_s)
                continue
            info = self._usable(answer)
            self.condition = Condition.READY if info else _CONDITIONS.get(answer.state, Condition.OFFLINE)
            self._know(info)
            retry_s = self._pace.retry_s
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.ask_s):
                    await self._news.wait()

    async def _watch_connection(self) -> None:
        """Notices a lost connection at once; asking alone would take until the next question."""
        while True:
            state = self.channel.get_state(try_to_connect=True)
            await self.channel.wait_for_state_change(state)
            if state is grpc.ChannelConnectivity.READY:
                self.suspect()

    def _usable(self, answer: pb.GetInfoResponse) -> WorkerInfo | None:
        if answer.state != pb.WORKER_STATE_READY or pb.SESSION_MODE_AUDIO not in answer.modes:
            return None
        rates = (answer.input_sample_rate_hz, answer.output_sample_rate_hz)
        if rates != (RATE_HZ, OUTPUT_RATE_HZ):
            logger.error("worker %s has sample rates %s; it is not used", self.target, rates)
            return None
        return WorkerInfo(answer.worker_id, answer.model, answer.slots, frozenset(answer.voice_ids))

    def _know(self, info: WorkerInfo | None) -> None:
        if info != self.info:
            logger.info("worker %s is %s", self.target, f"ready: {info}" if info else "not ready")
            self.info = info
            self._changed()


_CONDITIONS: Final = {
    pb.WORKER_STATE_LOADING: Condition.LOADING,
    pb.WORKER_STATE_READY: Condition.UNFIT,
}
"""Of workers that answer and take no sessions."""


class Fleet:
    """All workers. `changed` is called after every change of what is known about one."""

    def __init__(self, targets: Sequence[str], pace: Pace | None = None) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._workers = {
            target: Worker(target, pace or Pace(), lambda: self.changed())
            for target in dict.fromkeys(targets)
        }

    def start(self) -> None:
        """Begins to watch the workers."""
        for worker in self._workers.values():
            worker.start()

    async def stop(self) -> None:
        """Ends watching and closes every channel."""
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))

    def ready(self) -> list[tuple[str, WorkerInfo]]:
        """Targets and descriptions of the workers that take sessions."""
        return [(target, worker.info) for target, worker in self._workers.items() if worker.info]

    def conditions(self) -> Counter[Condition]:
        """How many workers are in each condition."""
        return Counter(worker.condition for worker in self._workers.values())

    def channel(self, target: str) -> grpc.aio.Channel:
        """The channel to `target`; all streams of a session go over one."""
        return self._workers[target].channel

    def suspect(self, target: str) -> None:
        """A session failed at `target` before it began."""
        self._workers[target].suspect()

    def catalogue(self) -> Catalogue | None:
        """What the ready workers serve; None while there is none."""
        infos = [info for _, info in self.ready()]
        if not infos:
            return None
        models = frozenset(info.model for info in infos)
        return Catalogue(models, frozenset().union(*(info.voices for info in infos)))
