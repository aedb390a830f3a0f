"""A gRPC worker for load tests, without a model: it answers every unit at once with fixed messages.

Its server is that of `antiphon worker`, so an adapter receives the same HTTP/2 frames as from a real worker.

`python -m benchmarks.load.worker [--listens | --listening-of-five N] [--obeys] [--slots N]` prints `ready on
<address>`.
"""

import argparse
import asyncio
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from antiphon.contract import METADATA_SESSION_ID, METADATA_WORKER_ID
from antiphon.v1 import inference_service_pb2 as pb
from benchmarks.load import payload
from inference_service.rpc.certificate import Certificate
from inference_service.rpc.server import WorkerServer
from inference_service.rpc.transport.call import Call, Context

WORKER_ID: Final = "bench"


class Stream:
    """The handler of one of the three calls of a session. `answer` is called with each request."""

    def __init__(self, call: Call, answer: Callable[[bytes], None]) -> None:
        self._call = call
        self._answer = answer
        call.take(self, (METADATA_WORKER_ID, WORKER_ID))
        call.resume()

    def message_received(self, data: bytes) -> None:
        """Answer one request."""
        self._answer(data)

    def half_closed(self) -> None:
        """End the call after the client's half-close."""
        self._call.end(grpc.StatusCode.OK)

    def given_up(self) -> None:
        """Release nothing: the call holds nothing."""

    def drained(self) -> None:
        """Do nothing: the worker never waits to write."""


class Session:
    """The three calls of one session. With `automatic_units`, a unit is answered in one message on Generate.

    The answer to a unit is a second of speech, or that the model listens. It listens in `listening_of_five`
    of five units, and with `obeys` in all units with `force_listen`.
    """

    def __init__(self, listening_of_five: int, obeys: bool) -> None:
        self.calls: dict[str, Call] = {}
        self.answers = {"Prefill": self._prefill, "Generate": self._generate, "Finalize": self._finalize}
        self._listening_of_five = listening_of_five
        self._obeys = obeys
        self._is_automatic = False
        self._keeps_records = False

    def _prefill(self, data: bytes) -> None:
        request = pb.PrefillRequest.FromString(data)
        if not request.unit:
            self._is_automatic = request.config.automatic_units
            ready = pb.SessionReady(worker_id=WORKER_ID, model="bench", max_units_in_flight=2)
            ready.effective.automatic_units = self._is_automatic
            self._keeps_records = ready.effective.records = request.config.records
            self._write("Prefill", pb.PrefillResponse(ready=ready))
        elif self._is_automatic:
            answer = payload.generated(request.unit, self._says(request.unit, request.run))
            answer.prefilled.CopyFrom(payload.prefilled(request.unit).prefilled)
            answer.finalized.CopyFrom(payload.finalized(request.unit))
            if self._keeps_records:
                answer.done.record.CopyFrom(payload.record(request.unit, answer.done.end))
            self._write("Generate", answer)
        else:
            self._write("Prefill", payload.prefilled(request.unit))

    def _generate(self, data: bytes) -> None:
        request = pb.GenerateRequest.FromString(data)
        if request.HasField("run"):
            says = self._says(request.unit, request.run)
            self._write("Generate", payload.generated(request.unit, says))

    def _finalize(self, data: bytes) -> None:
        self._write("Finalize", payload.finalized(pb.FinalizeRequest.FromString(data).unit))

    def _says(self, unit: int, run: pb.GenerateUnit) -> bool:
        return unit % 5 >= self._listening_of_five and not (self._obeys and run.force_listen)

    def _write(self, stream: str, answer: Message) -> None:
        self.calls[stream].write(answer.SerializeToString())


class Servicer:
    """The handlers of the inference service, with the state of all sessions."""

    def __init__(self, slots: int, listening_of_five: int, obeys: bool) -> None:
        self._slots = slots
        self._listening_of_five = listening_of_five
        self._obeys = obeys
        self._sessions: dict[str, Session] = {}

    def methods(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all calls for a gRPC server."""
        handlers: dict[str, Any] = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._serve, name))
            for name in ("Prefill", "Generate", "Finalize")
        }
        handlers["GetInfo"] = grpc.unary_unary_rpc_method_handler(
            self._get_info,
            request_deserializer=pb.GetInfoRequest.FromString,
            response_serializer=pb.GetInfoResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("antiphon.v1.InferenceService", handlers)

    async def _get_info(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Describe a ready worker with free slots."""
        return pb.GetInfoResponse(
            worker_id=WORKER_ID,
            model="bench",
            modes=[pb.SESSION_MODE_AUDIO, pb.SESSION_MODE_VIDEO],
            slots=self._slots,
            free_slots=self._slots,
            input_sample_rate_hz=16_000,
            output_sample_rate_hz=24_000,
            state=pb.WORKER_STATE_READY,
            replays_units=True,
        )

    async def _serve(self, stream: str, requests: object, context: Context) -> None:
        call = Call(context)
        name = str(dict(call.metadata)[METADATA_SESSION_ID])
        session = self._sessions.setdefault(name, Session(self._listening_of_five, self._obeys))
        session.calls[stream] = call
        Stream(call, session.answers[stream])
        try:
            await call.serve()
        finally:
            self._sessions.pop(name, None)


async def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--listen", metavar="HOST:PORT", help="instead of a Unix socket")
    parser.add_argument("--tls", metavar="DIR", type=Path, help="with cert.pem and key.pem")
    parser.add_argument("--listens", action="store_true")
    parser.add_argument("--listening-of-five", metavar="N", type=int, default=0)
    parser.add_argument("--obeys", action="store_true")
    arguments = parser.parse_args()
    listening = 5 if arguments.listens else arguments.listening_of_five
    servicer = Servicer(arguments.slots, listening, arguments.obeys)
    tls: Path | None = arguments.tls
    certificate = Certificate(tls / "cert.pem", tls / "key.pem") if tls is not None else None
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with tempfile.TemporaryDirectory() as folder:
        server = WorkerServer(
            servicer.methods(),
            arguments.listen or f"unix:{folder}/worker.sock",  # like `antiphon serve`
            slots=arguments.slots,
            is_keyed=False,
            insecure_grpc=False,
            certificate=certificate,
        )
        print(f"ready on {await server.start()}", flush=True)
        await server.set_serving(True)
        await stopped.wait()
        await server.stop(0.0)


if __name__ == "__main__":
    asyncio.run(main())
