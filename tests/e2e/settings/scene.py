"""One conversation through the adapter's machine and a worker's reading of it, without process or model."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import ConfigInvalid, WorkerError
from inference_service.interface.setups import Mode as WorkerMode
from tests.e2e.settings.families import Family, FamilySession
from tests.ws_adapter.support.pools import catalogue
from ws_adapter.protocol.core.actions import OpenWorkerSession, RunSegment, RunTurn, RunUnit, Send, TakeSlot
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.machine import Action, Become, Offload
from ws_adapter.protocol.core.signals import (
    NO_TIMINGS,
    Failed,
    Finalized,
    Finish,
    Piece,
    Signal,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.wire.codec import encode
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.server import protocols
from ws_adapter.server.protocols import MachineFactory
from ws_adapter.web.routes import Selection
from ws_adapter.worker import convert

Event = dict[str, Any]

WORKER_MODES = {
    Mode.AUDIO: WorkerMode.AUDIO,
    Mode.VIDEO: WorkerMode.VIDEO,
    Mode.CHAT: WorkerMode.CHAT,
    Mode.TRANSCRIPTION: WorkerMode.TRANSCRIBE,
}
SAID = np.full(2400, 0.25, "<f4").tobytes()


class StillClock:
    def now(self) -> float:
        return 1000.0

    def unix(self) -> float:
        return 1_800_000_000.0

    def call_at(self, when: float, callback: object) -> Any:
        raise AssertionError("a machine sets no timer")


class Scene:
    """The outcome of a conversation: `trace` holds everything observable by its client or the model.

    Events lack `unsupported_fields`, which `listed` collects; `refused` is True after an error.
    """

    def __init__(self, family: Family, selection: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
        counter = itertools.count(1)
        monkeypatch.setattr(protocols, "new_token", lambda: f"{next(counter):012x}")
        info = family.info
        known = catalogue(
            (info.name,),
            info.voice_ids,
            modes=frozenset(mode for mode, it in WORKER_MODES.items() if it in info.modes),
            calls_tools=info.calls_tools,
            speaks=info.output_sample_rate_hz > 0,
        )
        self.trace: list[str] = []
        self.events: list[Event] = []
        self.listed: list[str] = []
        self.refused = False
        self._family = family
        self._session: FamilySession | None = None
        clock = StillClock()
        self._machine = MachineFactory(clock).make(selection, "sess_1", Limits(), lambda: known, clock)
        self._do(self._machine.opened(1000.0))

    def send(self, event: Event) -> None:
        self._do(self._machine.text_frame(json.dumps(event).encode(), 1000.0))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._told(json.loads(encode(action.event)))
                case TakeSlot():
                    self._do(self._machine.granted(1000.0))
                case Offload():
                    self._do(action.work()(1000.0))
                case Become():
                    self._machine = action.machine
                case OpenWorkerSession():
                    self._configure(convert.session_config(action.setup, 600.0))
                case RunUnit() | RunTurn() | RunSegment():
                    self._run(action)
                case _:
                    self.trace.append(str(action))

    def _told(self, event: Event) -> None:
        self.refused |= event["type"] == "error"
        self.listed += event.pop("unsupported_fields", [])
        self.events.append(event)
        self.trace.append(json.dumps(event))

    def _hear(self, *signals: Signal) -> None:
        for signal in signals:
            self._do(self._machine.signal(signal, 1000.0))

    def _configure(self, config: pb.SessionConfig) -> None:
        try:
            self._session = self._family.configure(config)
        except WorkerError as error:
            reason = Reason.CONFIG_INVALID if isinstance(error, ConfigInvalid) else Reason.VOICE_NOT_FOUND
            self.trace.append(f"{error}")
            self.refused = True
            return self._hear(Failed(reason))
        self.trace.append(self._session.fingerprint)
        ready = convert.prefill_answer(pb.PrefillResponse(ready=self._session.ready))
        assert ready is not None
        return self._hear(ready)

    def _run(self, run: RunUnit | RunTurn | RunSegment) -> None:
        assert self._session is not None
        order = pb.GenerateRequest.FromString(convert.generate_bytes(run)).run
        prepared, answer = self._session.read(convert.prefill(run, ""), order)
        self.trace.append(prepared)
        signal = convert.prefill_answer(answer)
        if signal is None:
            error = answer.error
            failed = UnitDone(run.unit, UnitEnd.FAILED, 9, failure=Reason(error.reason), field=error.field)
            return self._hear(failed, Finalized(run.unit))
        if isinstance(run, RunUnit):
            return self._hear(signal, UnitDone(run.unit, UnitEnd.LISTEN, 9), Finalized(run.unit))
        end = UnitEnd.CHUNK if isinstance(run, RunSegment) and not run.ends else UnitEnd.TURN
        done = UnitDone(run.unit, end, 9, timings=NO_TIMINGS, finish=Finish.EOS)
        return self._hear(signal, Piece(run.unit, "Seven.", SAID), done, Finalized(run.unit))
