"""The registry of workers, which polls each worker with GetInfo and has its two channels."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import CLAIMS_VERSION
from antiphon_service.pools import STABLE, pool_name
from ws_adapter.process.errors import AttachFailed
from ws_adapter.protocol.core.config import USUAL_UNIT_MS, Capabilities, Catalogue, Mode, Pool
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ
from ws_adapter.protocol.media.reference_voice import RATE_HZ
from ws_adapter.worker.convert import MODES
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.dialler import Dial, dialler
from ws_adapter.worker.transport.rpc import RpcError

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 2.0

COMPARISONS: Final = 3
"""The attempts to connect an upload channel to the same worker as the main channel."""

_RATES: Final[dict[Mode, tuple[Set[int], Set[int]]]] = {
    Mode.AUDIO: ({RATE_HZ}, {OUTPUT_RATE_HZ, 0}),
    Mode.VIDEO: ({RATE_HZ}, {OUTPUT_RATE_HZ, 0}),
    Mode.CHAT: ({RATE_HZ, 0}, {OUTPUT_RATE_HZ, 0}),
    Mode.TRANSCRIPTION: ({RATE_HZ}, {OUTPUT_RATE_HZ, 0}),
}
"""The sample rates of input and output in Hz that each mode supports; 0 is a model without audio input, or
without speech output."""


@dataclass(frozen=True)
class WorkerInfo:
    """The answer of a ready worker to GetInfo; `modes` has only those that the adapter supports."""

    worker_id: str
    model: str
    slots: int
    voices: frozenset[str]
    modes: frozenset[Mode]
    calls_tools: bool = False
    """Whether its chats support tools."""
    speaks: bool = True
    hears: bool = True
    reads_claims: bool = True
    """Whether it reads lease tokens with claims."""
    replays: bool = False
    """Whether its full-duplex sessions can move to another worker."""
    unit_ms: int = USUAL_UNIT_MS
    """The shortest unit of its full-duplex sessions, in milliseconds of audio at 16 kHz."""
    yields: bool = False
    """Whether its model handles barge-in by itself."""
    reads_prompts: bool = True
    replays_turns: bool = False
    """Whether its chats can move to another worker."""
    revision: str = STABLE

    def may_move(self, mode: Mode | None) -> bool:
        """Return whether sessions of this mode can move to another worker of the model."""
        if mode is Mode.CHAT:
            return self.replays_turns
        return self.replays or mode is Mode.TRANSCRIPTION

    @property
    def pool(self) -> str:
        """The pool of the worker."""
        return pool_name(self.model, self.modes)


@dataclass(frozen=True)
class Occupied:
    """The last report of a worker's slots, in the answer to GetInfo request number `request`."""

    request: int = 0
    slots: Mapping[int, int] = field(default_factory=dict)
    """Occupied slots, each with the epoch of its lease, 0 for none."""


@dataclass(frozen=True)
class Pace:
    """Intervals between GetInfo requests to a worker, in seconds. After failures the interval doubles, from
    `retry_s` to `longest_retry_s`."""

    ask_s: float = 1.0
    retry_s: float = 0.1
    longest_retry_s: float = 2.0
    forget_s: float = 30.0
    """The seconds without an answer after which an unlisted worker is dropped. Its sessions are lost long
    before that."""


class Condition(StrEnum):
    """The conditions of a worker."""

    READY = "ready"
    LOADING = "loading"
    UNFIT = "unfit"
    """The worker answers, but cannot serve this adapter."""
    OFFLINE = "offline"
    """The worker does not answer, or is about to leave."""


class Worker:
    """One worker. `info` is None while it is not ready."""

    def __init__(
        self,
        target: str,
        pace: Pace,
        changed: Callable[[], None],
        dial: Dial,
        has_room: Callable[[], None] = lambda: None,
        unreachable: Callable[[], None] = lambda: None,
    ) -> None:
        """`has_room` is called when the worker reports capacity for a session, `unreachable` when it does not
        answer."""
        self.target = target
        self.info: WorkerInfo | None = None
        self.condition = Condition.OFFLINE
        self.is_short_of_time = False
        """Whether its last report said that another session would make its units late."""
        self.occupied = Occupied()
        self.drain_watchers: dict[Callable[[], None], None] = {}
        """Callbacks that are called at each report of a drain."""
        self.used: dict[int, tuple[int, int]] = {}
        """Input and output tokens by lease epoch, as last reported."""
        self.info_requests = 0
        """The number of GetInfo requests."""
        self.channel = dial(target, self.suspect)
        self._upload_channel = dial(target, self._uploads_lost)
        self._uploads_to = ""
        """The id of the worker that the upload channel reaches; empty while unknown."""
        self._mismatches = 0
        self._logged_failure = ""
        """The last logged reason why the worker did not answer."""
        self._pace = pace
        self._changed = changed
        self._has_room = has_room
        self._unreachable = unreachable
        self._heard_at = 0.0
        self._news = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    @property
    def silent_s(self) -> float:
        """The seconds since the last answer, or since `start`."""
        return asyncio.get_running_loop().time() - self._heard_at

    def start(self) -> None:
        """Start polling."""
        self._heard_at = asyncio.get_running_loop().time()
        self._asking = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Stop polling and close the channels."""
        self.close()
        if self._asking is not None:
            await asyncio.gather(self._asking, return_exceptions=True)
        await self.channel.wait_closed()
        await self._upload_channel.wait_closed()

    def close(self) -> None:
        """Stop polling and close the channels, without waiting for the end."""
        if self._asking is not None:
            self._asking.cancel()
        self.channel.close()
        self._upload_channel.close()

    def channel_for(self, kind: Kind) -> Channel:
        """Return the channel for a session of this kind.

        Sessions with large uploads have a separate channel, which avoids head-of-line blocking of others.
        """
        is_same = self.info is not None and self.info.worker_id == self._uploads_to
        return self._upload_channel if kind in _UPLOADING and is_same else self.channel

    def suspect(self) -> None:
        """Mark the worker as offline after a failed session: it gets no session until it answers GetInfo."""
        self.condition = Condition.OFFLINE
        self._uploads_to, self._mismatches = "", 0
        self._set_info(None)
        self._news.set()

    async def holds(self, worker_id: str, epoch: int) -> bool | None:
        """Return whether the worker still holds the lease of this epoch; None if it does not answer.

        A worker holds a lease from the attachment of its session until the slot is clean.
        """
        try:
            answer = await self._get_info(self.channel)
        except RpcError:
            return None
        return answer.worker_id == worker_id and any(held.epoch == epoch for held in answer.held)

    async def _ask(self) -> None:
        retry_s = self._pace.retry_s
        while True:
            self._news.clear()
            try:
                answer = await self._get_info(self.channel)
            except RpcError as error:
                self._log_failure(str(error))
                self.condition = Condition.OFFLINE
                self._set_info(None)
                self._unreachable()
                await asyncio.sleep(retry_s * random.uniform(0.8, 1.2))
                retry_s = min(retry_s * 2, self._pace.longest_retry_s)
                continue
            self._heard_at = asyncio.get_running_loop().time()
            self._logged_failure = ""
            info = self._usable(answer)
            self.condition = Condition.READY if info else _CONDITIONS.get(answer.state, Condition.OFFLINE)
            self.is_short_of_time = answer.short_of_time
            self._set_info(info)
            if answer.state == pb.WORKER_STATE_DRAINING:
                for drains in tuple(self.drain_watchers):
                    drains()
            if not self.is_short_of_time:
                self._has_room()
            if info is not None:
                await self._compare(info)
            retry_s = self._pace.retry_s
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.ask_s):
                    await self._news.wait()

    def _log_failure(self, why: str) -> None:
        if why != self._logged_failure:
            self._logged_failure = why
            logger.warning("worker %s does not answer: %s", self.target, why)

    async def _compare(self, info: WorkerInfo) -> None:
        """Check that both channels reach the same worker: a name may resolve to several.

        Until they do, uploads use the main channel.
        """
        if (
            Mode.CHAT not in info.modes
            or self._uploads_to == info.worker_id
            or self._mismatches >= COMPARISONS
        ):
            return
        try:
            answer = await self._get_info(self._upload_channel)
        except RpcError:
            return
        if answer.worker_id == info.worker_id:
            self._uploads_to = info.worker_id
            return
        self._mismatches += 1
        self._upload_channel.disconnect()
        logger.warning(
            "%s resolves to worker %s and to %s; give each worker an address of its own",
            self.target,
            info.worker_id,
            answer.worker_id,
        )

    def _uploads_lost(self) -> None:
        self._uploads_to = ""

    async def _get_info(self, channel: Channel) -> pb.GetInfoResponse:
        self.info_requests = request = self.info_requests + 1
        answer = await channel.ask(
            "GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, timeout_s=ASK_TIMEOUT_S
        )
        if channel is self.channel and request > self.occupied.request:
            before, now = self.occupied.slots, {held.slot: held.epoch for held in answer.held}
            self.occupied = Occupied(request, now)
            self.used = {each.epoch: (each.input_tokens, each.output_tokens) for each in answer.usage}
            if before.keys() != now.keys():
                self._changed()
        return answer

    def _usable(self, answer: pb.GetInfoResponse) -> WorkerInfo | None:
        if answer.state != pb.WORKER_STATE_READY:
            return None
        offered = {mode for mode, number in MODES.items() if number in answer.modes}
        rates = (answer.input_sample_rate_hz, answer.output_sample_rate_hz)
        modes = {mode for mode in offered if rates[0] in _RATES[mode][0] and rates[1] in _RATES[mode][1]}
        if not modes:
            if offered:
                logger.error("worker %s is not used: no mode has its sample rates %s", self.target, rates)
            return None
        voices = frozenset(answer.voice_ids)
        return WorkerInfo(
            answer.worker_id,
            answer.model,
            answer.slots,
            voices,
            frozenset(modes),
            answer.calls_tools,
            answer.output_sample_rate_hz > 0,
            answer.input_sample_rate_hz > 0,
            answer.lease_version >= CLAIMS_VERSION,
            answer.replays_units,
            min(
                (it.chunk_ms for it in answer.unit_formats if it.sample_rate == RATE_HZ),
                default=USUAL_UNIT_MS,
            ),
            answer.yields,
            "system_prompt" not in answer.ignored_fields,
            answer.replays_turns,
            answer.revision or STABLE,
        )

    def _set_info(self, info: WorkerInfo | None) -> None:
        if info != self.info:
            known = info or self.info
            state = {"state": self.condition.value, "worker_id": known.worker_id if known else None}
            logger.info(
                "worker %s is %s", self.target, f"ready: {info}" if info else "not ready", extra=state
            )
            self.info = info
            self._changed()


_UPLOADING: Final = frozenset({Kind.CHAT, Kind.REALTIME})
"""Kinds of sessions with large uploads: whole conversations."""

_CONDITIONS: Final = {
    pb.WORKER_STATE_LOADING: Condition.LOADING,
    pb.WORKER_STATE_READY: Condition.UNFIT,
}
"""The conditions of workers that answer but get no sessions."""


class Registry:
    """All workers. `changed` is called after every change of a worker.

    A worker that is no longer listed gets no new session. It is dropped once it has not answered for
    `Pace.forget_s` seconds.
    """

    def __init__(self, targets: Sequence[str], pace: Pace | None = None, dial: Dial | None = None) -> None:
        """`dial` makes the channels; without it they have no TLS."""
        self.changed: Callable[[], None] = lambda: None
        self._pace = pace or Pace()
        self._dial = dial or dialler()
        self._named: tuple[str, ...] = ()
        self._workers: dict[str, Worker] = {}
        self._shut: set[str] = set()
        self._is_started = False
        self.set_targets(targets)

    def start(self) -> None:
        """Start polling the workers."""
        self._is_started = True
        for worker in self._workers.values():
            worker.start()

    def set_targets(self, targets: Sequence[str]) -> None:
        """Set the addresses of all listed workers."""
        self._named = tuple(dict.fromkeys(targets))
        for target in self._named:
            if target not in self._workers:
                self._workers[target] = worker = Worker(
                    target,
                    self._pace,
                    lambda: self.changed(),
                    self._dial,
                    partial(self.reopen, target),
                    partial(self._unanswered, target),
                )
                if self._is_started:
                    worker.start()
        self.changed()

    def _unanswered(self, target: str) -> None:
        """Drop an unreachable worker, unless it is listed or was reached lately."""
        if target not in self._named and self._workers[target].silent_s >= self._pace.forget_s:
            self._shut.discard(target)
            self._workers.pop(target).close()

    async def stop(self) -> None:
        """Stop polling and close every channel."""
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))

    def ready(self) -> list[tuple[str, WorkerInfo]]:
        """Return the addresses and descriptions of the ready, listed workers."""
        workers = ((target, self._workers[target]) for target in self._named)
        return [(target, worker.info) for target, worker in workers if worker.info]

    def workers(self) -> list[Worker]:
        """Return all workers, in the order of discovery."""
        return list(self._workers.values())

    def model(self, target: str) -> str:
        """Return the model of the worker at `target`; empty while unknown."""
        worker = self._workers.get(target)
        return worker.info.model if worker is not None and worker.info is not None else ""

    def revision(self, target: str) -> str:
        """Return the revision of the worker at `target`; empty while unknown."""
        worker = self._workers.get(target)
        return worker.info.revision if worker is not None and worker.info is not None else ""

    def serves(self, target: str, mode: Mode | None, model: str) -> bool:
        """Return whether the worker at `target` serves the mode and the model, True while unknown.

        A `mode` of None and an empty `model` are any.
        """
        worker = self._workers.get(target)
        info = worker.info if worker is not None else None
        return info is None or (mode in (None, *info.modes) and model in ("", info.model))

    def reads_claims(self, target: str) -> bool:
        """Return whether the worker at `target` reads lease tokens with claims, True while unknown."""
        worker = self._workers.get(target)
        info = worker.info if worker is not None else None
        return info is None or info.reads_claims

    def may_move(self, target: str, mode: Mode | None) -> bool:
        """Return whether sessions of this mode at `target` can move to another worker, True while unknown."""
        worker = self._workers.get(target)
        info = worker.info if worker is not None else None
        return info is None or info.may_move(mode)

    def has_another(self, target: str, mode: Mode | None, model: str) -> bool:
        """Return whether a ready worker other than that at `target` can replay this mode and model."""
        return any(
            other != target and info.may_move(mode) and self.serves(other, mode, model)
            for other, info in self.ready()
        )

    def watch_drain(self, target: str, drains: Callable[[], None]) -> Callable[[], None]:
        """Call `drains` when the worker at `target` reports a drain; the returned function ends the watch."""
        worker = self._workers.get(target)
        if worker is None:
            return lambda: None
        worker.drain_watchers[drains] = None
        return lambda: worker.drain_watchers.pop(drains, None)

    def is_served(self, mode: Mode | None, model: str, models: Set[str] | None = None) -> bool:
        """Return whether a ready worker with one of `models`, None for any, serves the mode and the model."""
        return any(
            self.serves(target, mode, model)
            for target, info in self.ready()
            if models is None or info.model in models
        )

    def conditions(self) -> Counter[Condition]:
        """Return the number of listed workers in each condition."""
        return Counter(self._workers[target].condition for target in self._named)

    def channel(self, target: str, kind: Kind) -> Channel:
        """Return the channel to `target` for sessions of this kind; all streams of a session go over one.

        Raises `AttachFailed` if the worker was dropped meanwhile.
        """
        worker = self._workers.get(target)
        if worker is None:
            raise AttachFailed(Reason.WORKER_LOST)
        return worker.channel_for(kind)

    def suspect(self, target: str) -> None:
        """Mark the worker at `target` as offline until it answers: a session failed before it began."""
        if target in self._workers:
            self._workers[target].suspect()

    def shut(self, target: str) -> None:
        """Send no sessions to a full worker until it reports capacity."""
        self._shut.add(target)

    def is_open(self, target: str) -> bool:
        """Return whether the worker at `target` takes another session."""
        return target not in self._shut

    def is_short_of_time(self, target: str) -> bool:
        """Return whether the last report of the worker at `target` said that another session would make its
        units late."""
        return target in self._workers and self._workers[target].is_short_of_time

    async def holds(self, target: str, worker_id: str, epoch: int) -> bool | None:
        """Return whether a worker still holds the lease of this epoch; None if it does not answer."""
        worker = self._workers.get(target)
        return await worker.holds(worker_id, epoch) if worker is not None else False

    def used(self, target: str, epoch: int) -> tuple[int, int] | None:
        """Return the input and output tokens of the session with this lease epoch; None if not reported."""
        worker = self._workers.get(target)
        return worker.used.get(epoch) if worker is not None else None

    def info_requests(self, target: str) -> int:
        """Return the number of GetInfo requests to the worker at `target`."""
        worker = self._workers.get(target)
        return worker.info_requests if worker is not None else 0

    def occupied(self, target: str) -> Occupied:
        """Return the slots of the worker at `target`, as last reported."""
        worker = self._workers.get(target)
        return worker.occupied if worker is not None else Occupied()

    def reopen(self, target: str) -> None:
        """Send sessions again to the worker at `target`, which has reported capacity."""
        if target in self._shut:
            self._shut.remove(target)
            self.changed()

    def catalogue(self) -> Catalogue | None:
        """Return the catalogue of the ready workers; None while there is none."""
        pools: dict[str, list[WorkerInfo]] = {}
        for _, info in self.ready():
            pools.setdefault(info.pool, []).append(info)
        return Catalogue(tuple(_pool(name, infos) for name, infos in pools.items())) if pools else None


def _pool(name: str, infos: Sequence[WorkerInfo]) -> Pool:
    """Return a pool with the capabilities of all its workers, since a session may get any of them."""
    return Pool(
        name,
        infos[0].model,
        Capabilities(
            infos[0].voices.intersection(*(info.voices for info in infos)),
            infos[0].modes,
            all(info.calls_tools for info in infos),
            all(info.speaks for info in infos),
            all(info.hears for info in infos),
            max(info.unit_ms for info in infos),
            all(info.yields for info in infos),
            all(info.reads_prompts for info in infos),
        ),
    )
