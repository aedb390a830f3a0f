"""The gRPC contract of the release before, and a worker that knows no more than that."""

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

FOLDER = Path(__file__).parents[1] / "data/contract"
SERVICE = "antiphon.v1.InferenceService"


@dataclass(frozen=True)
class Request:
    stream: str
    data: bytes


class Contract:
    def __init__(self, path: Path = FOLDER / "before.binpb") -> None:
        self.files = FileDescriptorSet.FromString(path.read_bytes())
        self._pool = DescriptorPool()
        for file in self.files.file:
            self._pool.Add(file)  # type: ignore[no-untyped-call]

    def message(self, name: str) -> type[Message]:
        descriptor = self._pool.FindMessageTypeByName(f"antiphon.v1.{name}")  # type: ignore[no-untyped-call]
        return GetMessageClass(descriptor)

    def method(self, name: str) -> MethodDescriptor | None:
        service = self._pool.FindServiceByName(SERVICE)  # type: ignore[no-untyped-call]
        found: MethodDescriptor | None = service.methods_by_name.get(name)
        return found

    def narrow(self, name: str, data: bytes) -> bytes:
        message = self.message(name).FromString(data)
        message.DiscardUnknownFields()  # type: ignore[attr-defined]
        return message.SerializeToString()


@dataclass
class Narrowed(grpc.GenericRpcHandler):
    """A worker's methods as one of the release before serves them.

    What that release does not know is neither read nor written.
    """

    contract: Contract
    today: grpc.GenericRpcHandler
    requests: list[Request] = field(default_factory=list)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = self.contract.method(details.method.rpartition("/")[2])
        found: Any = self.today.service(details)
        if method is None or found is None:
            return None
        if not found.request_streaming:
            return grpc.unary_unary_rpc_method_handler(
                found.unary_unary,
                request_deserializer=lambda data: found.request_deserializer(self._read(method, data)),
                response_serializer=lambda answer: self._write(method, found.response_serializer(answer)),
            )

        async def serve(requests: object, context: Any) -> None:
            read = partial(self._read, method)
            await found.stream_stream(requests, _NarrowContext(context, read, partial(self._write, method)))

        return grpc.stream_stream_rpc_method_handler(serve)

    def _read(self, method: MethodDescriptor, data: bytes) -> bytes:
        narrowed = self.contract.narrow(method.input_type.name, data)
        self.requests.append(Request(method.name, narrowed))
        return narrowed

    def _write(self, method: MethodDescriptor, data: bytes) -> bytes:
        return self.contract.narrow(method.output_type.name, data)


class _NarrowContext:
    """The context of a call, but for what is read and written."""

    def __init__(
        self, context: Any, request: Callable[[bytes], bytes], answer: Callable[[bytes], bytes]
    ) -> None:
        self._context, self._request, self._answer = context, request, answer

    async def read(self) -> Any:
        data = await self._context.read()
        return self._request(data) if isinstance(data, bytes) else data

    async def write(self, message: bytes) -> None:
        await self._context.write(self._answer(message))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def write_session(requests: list[Request], path: Path) -> None:
    lines = [json.dumps({"stream": r.stream, "data": base64.b64encode(r.data).decode()}) for r in requests]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read_session(path: Path = FOLDER / "session.jsonl.gz") -> Iterator[Request]:
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        told = json.loads(line)
        yield Request(told["stream"], base64.b64decode(told["data"]))
