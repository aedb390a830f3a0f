"""What a worker is."""

import grpc

from antiphon.grpc.status import Status
from antiphon.semconv import CLIENT_OPTIONS
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub


async def get_info(target: str, timeout_s: float = 5.0) -> pb.GetInfoResponse:
    """Asks the worker at `target` (`host:port` or `unix:path`) to describe itself; needs no session.

    Raises `ConnectError` if none answers in time.
    """
    async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
        stub = InferenceServiceStub(channel)
        try:
            return await stub.GetInfo(pb.GetInfoRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            status = Status.of(error.code(), error.details() or "", error.trailing_metadata())
            raise status.error(target, ready=False) from error
