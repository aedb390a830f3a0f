"""Description of a worker."""

import grpc

from antiphon.grpc.dial import open_channel
from antiphon.grpc.status import Status
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub


async def get_info(
    target: str, timeout_s: float = 5.0, *, credentials: grpc.ChannelCredentials | None = None
) -> pb.GetInfoResponse:
    """Ask the worker at `target` (`host:port` or `unix:path`) to describe itself; needs no session.

    `credentials` are needed for a worker with TLS: `grpc.ssl_channel_credentials(...)`. Raises `ConnectError`
    if no worker answers in time.
    """
    async with open_channel(target, credentials) as channel:
        stub = InferenceServiceStub(channel)
        try:
            return await stub.GetInfo(pb.GetInfoRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            status = Status.of(error.code(), error.details() or "", error.trailing_metadata())
            raise status.error(target, ready=False) from error
