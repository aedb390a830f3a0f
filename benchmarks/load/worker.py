"""A gRPC worker without a model: it answers every unit at once with fixed messages. For load tests only.

Its server is a bare `grpc.aio` one: a measurement of the adapter contains nothing of `antiphon worker`.

`python -m benchmarks.load.worker [--listens | --listening-of-five N] [--obeys] [--slots N]`; prints
`ready on <address>`.
"""

import argparse
import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from antiphon.semconv import METADATA_WORKER_ID
from antiphon.v1 import inference_service_pb2 as pb
from benchmarks.load import payload
from benchmarks.load.grpc_server import server

WORKER_ID: Final = "bench"
_SERVICE: Final = "antiphon.v1.InferenceService"


class Answering:
    """The answers. Units speak for a second each, except those that `_speaks_in` excludes."""

    def __init__(self, slots: int, listens: bool, obeys: bool, listening_of_five: int) -> None:
        """`listens`: no unit speaks; `obeys`: units with `force_listen` do not; `listening_of_five`: of five
        consecutive units of a session so many do not."""
        self._slots = slots
        self._listening_of_five = 5 if listens else listening_of_five
        self._obeys = obeys

    def methods(self) -> "grpc.GenericRpcHandler":
        """The service."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                self._get_info, pb.GetInfoRequest.FromString, pb.GetInfoResponse.SerializeToString
            ),
            "Prefill": _stream(pb.PrefillRequest, self._prefill),
            "Generate": _stream(pb.GenerateRequest, self._generate),
            "Finalize": _stream(pb.FinalizeRequest, self._finalize),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, handlers)

    async def _get_info(self, request: pb.GetInfoRequest, context: object) -> pb.GetInfoResponse:
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

    def _prefill(self, request: pb.PrefillRequest) -> pb.PrefillResponse:
        if request.unit:
            return payload.prefilled(request.unit)
        ready = pb.SessionReady(worker_id=WORKER_ID, model="bench", max_units_in_flight=2)
        return pb.PrefillResponse(ready=ready)

    def _generate(self, request: pb.GenerateRequest) -> pb.GenerateResponse | None:
        if not request.HasField("run"):
            return None
        return payload.generated(request.unit, self._speaks_in(request))

    def _speaks_in(self, request: pb.GenerateRequest) -> bool:
        if self._obeys and request.run.force_listen:
            return False
        return request.unit % 5 >= self._listening_of_five

    def _finalize(self, request: pb.FinalizeRequest) -> pb.FinalizeResponse:
        return payload.finalized(request.unit)


def _stream(
    request: type[Message], answer: Callable[[Any], Message | None]
) -> "grpc.RpcMethodHandler[Any, Any]":
    """One of the three calls of a session: each request is answered by `answer`, which may return None."""

    async def handle(requests: AsyncIterator[Any], context: Any) -> None:
        await context.send_initial_metadata(((METADATA_WORKER_ID, WORKER_ID),))
        async for message in requests:
            if (answered := answer(message)) is not None:
                await context.write(answered.SerializeToString())

    return grpc.stream_stream_rpc_method_handler(handle, request.FromString, None)


async def main() -> None:
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--listen", metavar="HOST:PORT", help="instead of a Unix socket")
    parser.add_argument("--tls", metavar="DIR", type=Path, help="with cert.pem and key.pem")
    parser.add_argument("--listens", action="store_true")
    parser.add_argument("--listening-of-five", metavar="N", type=int, default=0)
    parser.add_argument("--obeys", action="store_true")
    arguments = parser.parse_args()
    answering = Answering(arguments.slots, arguments.listens, arguments.obeys, arguments.listening_of_five)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with tempfile.TemporaryDirectory() as folder:
        serving = server(arguments.slots)
        serving.add_generic_rpc_handlers((answering.methods(),))
        address = arguments.listen or f"unix:{folder}/worker.sock"  # as `antiphon serve` does it
        if arguments.tls is not None:
            pair = (arguments.tls / "key.pem").read_bytes(), (arguments.tls / "cert.pem").read_bytes()
            port = serving.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            port = serving.add_insecure_port(address)
        await serving.start()
        if arguments.listen:
            address = f"{arguments.listen.rpartition(':')[0]}:{port}"
        print(f"ready on {address}", flush=True)
        await stopped.wait()
        await serving.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
