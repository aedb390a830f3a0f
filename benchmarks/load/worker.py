"""A gRPC worker without a model: answers every unit at once, always in the same way. For load, not for truth.

Its server is that of `antiphon worker`, so what reaches an adapter comes as it does from one.

`python -m benchmarks.load.worker [--listens] [--obeys] [--slots N]`; prints `ready on <address>`.
"""

import argparse
import asyncio
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from antiphon.semconv import METADATA_WORKER_ID
from antiphon.v1 import inference_service_pb2 as pb
from benchmarks.load import payload
from inference_service.rpc.call import Call, Context
from inference_service.rpc.certificate import Certificate
from inference_service.rpc.server import WorkerServer

WORKER_ID: Final = "bench"


class Stream:
    """One of the three calls of a session: each request is answered by `answer`, or not at all."""

    def __init__(self, call: Call, answer: Callable[[bytes], Message | None]) -> None:
        self._call = call
        self._answer = answer
        call.take(self, (METADATA_WORKER_ID, WORKER_ID))
        call.resume()

    def message_received(self, data: bytes) -> None:
        """See `Handler.message_received`."""
        if (answer := self._answer(data)) is not None:
            self._call.write(answer.SerializeToString())

    def half_closed(self) -> None:
        """See `Handler.half_closed`."""
        self._call.end(grpc.StatusCode.OK)

    def given_up(self) -> None:
        """See `Handler.given_up`."""

    def drained(self) -> None:
        """See `Handler.drained`."""


class Answering:
    """Speaks a second in every unit, or with `listens` never; with `obeys` not in one that is to listen."""

    def __init__(self, slots: int, listens: bool, obeys: bool) -> None:
        self._slots = slots
        self._speaks = not listens
        self._obeys = obeys

    def methods(self) -> grpc.GenericRpcHandler:
        """Return what answers the service's calls."""
        handlers: dict[str, Any] = {
            name: _stream_handler(answer)
            for name, answer in (
                ("Prefill", self._prefill),
                ("Generate", self._generate),
                ("Finalize", self._finalize),
            )
        }
        handlers["GetInfo"] = grpc.unary_unary_rpc_method_handler(
            self._get_info,
            request_deserializer=pb.GetInfoRequest.FromString,
            response_serializer=pb.GetInfoResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("antiphon.v1.InferenceService", handlers)

    async def _get_info(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Describe a worker that is ready."""
        return pb.GetInfoResponse(
            worker_id=WORKER_ID,
            model="bench",
            modes=[pb.SESSION_MODE_AUDIO, pb.SESSION_MODE_VIDEO],
            slots=self._slots,
            free_slots=self._slots,
            input_sample_rate_hz=16_000,
            output_sample_rate_hz=24_000,
            state=pb.WORKER_STATE_READY,
        )

    def _prefill(self, data: bytes) -> Message:
        """Takes the config, then the input of units."""
        request = pb.PrefillRequest.FromString(data)
        if request.unit:
            return payload.prefilled(request.unit)
        ready = pb.SessionReady(worker_id=WORKER_ID, model="bench", max_units_in_flight=2)
        return pb.PrefillResponse(ready=ready)

    def _generate(self, data: bytes) -> Message | None:
        """Runs units."""
        request = pb.GenerateRequest.FromString(data)
        if not request.HasField("run"):
            return None
        return payload.generated(
            request.unit, self._speaks and not (self._obeys and request.run.force_listen)
        )

    def _finalize(self, data: bytes) -> Message:
        """Closes units."""
        return payload.finalized(pb.FinalizeRequest.FromString(data).unit)


def _stream_handler(answer: Callable[[bytes], Message | None]) -> Any:
    async def serve(requests: object, context: Context) -> None:
        call = Call(context)
        Stream(call, answer)
        await call.serve()

    return grpc.stream_stream_rpc_method_handler(serve)


async def main() -> None:
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--listen", metavar="HOST:PORT", help="instead of a Unix socket")
    parser.add_argument("--tls", metavar="DIR", type=Path, help="with cert.pem and key.pem")
    parser.add_argument("--listens", action="store_true")
    parser.add_argument("--obeys", action="store_true")
    arguments = parser.parse_args()
    answering = Answering(arguments.slots, arguments.listens, arguments.obeys)
    tls: Path | None = arguments.tls
    certificate = Certificate(tls / "cert.pem", tls / "key.pem") if tls is not None else None
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with tempfile.TemporaryDirectory() as folder:
        server = WorkerServer(
            answering.methods(),
            arguments.listen or f"unix:{folder}/worker.sock",  # as `antiphon serve` does it
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
