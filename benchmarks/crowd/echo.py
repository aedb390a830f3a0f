"""The floor of a service: plain `grpc.aio` that answers the streams of workload W with fixed messages.

`python -m benchmarks.crowd.echo` prints `ready on <address>`. It answers each line on its standard input with
its CPU time, in the JSON of `benchmarks.crowd.worker`.
"""

import asyncio
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from antiphon.contract import METADATA_SESSION_ID, METADATA_WORKER_ID
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import (
    InferenceServiceServicer,
    add_InferenceServiceServicer_to_server,
)
from benchmarks.crowd.workload import place, speaks
from benchmarks.load import grpc_server, payload

_INITIAL = ((METADATA_WORKER_ID, "echo"),)
_SESSIONS = 256


class Echo(InferenceServiceServicer):
    """A servicer that answers every message at once. It calls `heard` with each unit's session and number."""

    def __init__(self, heard: Callable[[str, int], None]) -> None:
        self._heard = heard

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:
        """Return only an id: no client calls this."""
        return pb.GetInfoResponse(worker_id="echo")

    # The generated base class expects generators; these handlers write to their context instead.
    async def Prefill(  # type: ignore[override]
        self, requests: AsyncIterator[pb.PrefillRequest], context: Any
    ) -> None:
        """Accept the config, then the input of units."""
        await context.send_initial_metadata(_INITIAL)
        name = dict(context.invocation_metadata())[METADATA_SESSION_ID]
        async for request in requests:
            if request.unit:
                self._heard(name, request.unit)
                await context.write(payload.prefilled(request.unit))
            else:
                ready = pb.SessionReady(
                    worker_id="echo",
                    model="echo",
                    max_units_in_flight=2,
                    input_sample_rate_hz=16_000,
                    output_sample_rate_hz=24_000,
                )
                ready.unit_duration.seconds = 1
                await context.write(pb.PrefillResponse(ready=ready))

    async def Generate(  # type: ignore[override]
        self, requests: AsyncIterator[pb.GenerateRequest], context: Any
    ) -> None:
        """Answer each unit at once: a speaking one with two messages, text and audio."""
        await context.send_initial_metadata(_INITIAL)
        name = dict(context.invocation_metadata())[METADATA_SESSION_ID]
        async for request in requests:
            if not request.HasField("run"):
                continue
            says = speaks(place(name, request.unit))
            if says:
                text = pb.TextDelta(text="so this is", token_ids=[1, 2, 3, 4, 5, 6])
                await context.write(pb.GenerateResponse(unit=request.unit, text=text))
            await context.write(payload.generated(request.unit, says))

    async def Finalize(  # type: ignore[override]
        self, requests: AsyncIterator[pb.FinalizeRequest], context: Any
    ) -> None:
        """Close units."""
        await context.send_initial_metadata(_INITIAL)
        async for request in requests:
            await context.write(payload.finalized(request.unit))


def answer() -> None:
    """Answer every line on standard input with the CPU time of this process."""
    for _ in sys.stdin:
        print(json.dumps({"process": time.process_time(), "engine": 0.0, "model": 0.0}), flush=True)


def _ignore(name: str, unit: int) -> None:
    pass


async def main(heard: Callable[[str, int], None] = _ignore, tell: Callable[[], None] = answer) -> None:
    """Serve until SIGTERM; `tell` answers the lines on standard input."""
    server = grpc_server.server(_SESSIONS)
    add_InferenceServiceServicer_to_server(Echo(heard), server)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    threading.Thread(target=tell, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/worker.sock"
        server.add_insecure_port(address)
        await server.start()
        print(f"ready on {address}", flush=True)
        await stopped.wait()
        await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
