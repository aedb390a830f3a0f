"""A gRPC worker without a model: answers every unit at once, always in the same way. For load, not for truth.

`python -m benchmarks.load.worker [--listens] [--obeys] [--slots N]`; prints `ready on <address>`.
"""

import argparse
import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from antiphon.semconv import METADATA_WORKER_ID
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import (
    InferenceServiceServicer,
    add_InferenceServiceServicer_to_server,
)
from benchmarks.load import grpc_server, payload

WORKER_ID = "bench"
_INITIAL = ((METADATA_WORKER_ID, WORKER_ID),)


class Answering(InferenceServiceServicer):
    """Speaks a second in every unit, or with `listens` never; with `obeys` not in one that is to listen."""

    def __init__(self, slots: int, listens: bool, obeys: bool) -> None:
        self._slots = slots
        self._speaks = not listens
        self._obeys = obeys

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:
        """A worker that is ready."""
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

    async def Prefill(self, requests: AsyncIterator[pb.PrefillRequest], context: Any) -> None:
        """Takes the config, then the input of units."""
        await context.send_initial_metadata(_INITIAL)
        async for request in requests:
            if request.unit:
                await context.write(payload.prefilled(request.unit))
            else:
                ready = pb.SessionReady(worker_id=WORKER_ID, model="bench", max_units_in_flight=2)
                await context.write(pb.PrefillResponse(ready=ready))

    async def Generate(self, requests: AsyncIterator[pb.GenerateRequest], context: Any) -> None:
        """Runs units."""
        await context.send_initial_metadata(_INITIAL)
        async for request in requests:
            if request.HasField("run"):
                speaks = self._speaks and not (self._obeys and request.run.force_listen)
                await context.write(payload.generated(request.unit, speaks))

    async def Finalize(self, requests: AsyncIterator[pb.FinalizeRequest], context: Any) -> None:
        """Closes units."""
        await context.send_initial_metadata(_INITIAL)
        async for request in requests:
            await context.write(payload.finalized(request.unit))


def _add_port(server: grpc.aio.Server, address: str, tls: Path | None) -> int:
    if tls is None:
        return server.add_insecure_port(address)
    pair = ((tls / "key.pem").read_bytes(), (tls / "cert.pem").read_bytes())
    return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))


async def main() -> None:
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--listen", metavar="HOST:PORT", help="instead of a Unix socket")
    parser.add_argument("--tls", metavar="DIR", type=Path, help="with cert.pem and key.pem")
    parser.add_argument("--listens", action="store_true")
    parser.add_argument("--obeys", action="store_true")
    arguments = parser.parse_args()
    server = grpc_server.server(arguments.slots)
    answering = Answering(arguments.slots, arguments.listens, arguments.obeys)
    add_InferenceServiceServicer_to_server(answering, server)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with tempfile.TemporaryDirectory() as folder:
        address = arguments.listen or f"unix:{folder}/worker.sock"  # as `antiphon serve` does it
        port = _add_port(server, address, arguments.tls)
        if arguments.listen:
            address = f"{arguments.listen.rpartition(':')[0]}:{port}"
        await server.start()
        print(f"ready on {address}", flush=True)
        await stopped.wait()
        await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
