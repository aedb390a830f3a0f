"""The gRPC contract of the release before, and a worker that knows no more than that."""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    """What a caller of the release before wrote on one of a session's streams."""

    stream: str
    data: bytes


class Contract:
    """Messages and methods as the release before has them."""

    def __init__(self, path: Path = FOLDER / "before.binpb") -> None:
        self.files = FileDescriptorSet.FromString(path.read_bytes())
        self._pool = DescriptorPool()
        for file in self.files.file:
            self._pool.Add(file)  # type: ignore[no-untyped-call]

    def message(self, name: str) -> type[Message]:
        """The class of a message of the package."""
        descriptor = self._pool.FindMessageTypeByName(f"antiphon.v1.{name}")  # type: ignore[no-untyped-call]
        return GetMessageClass(descriptor)

    def method(self, name: str) -> MethodDescriptor | None:
        """A method of the inference service."""
        service = self._pool.FindServiceByName(SERVICE)  # type: ignore[no-untyped-call]
        found: MethodDescriptor | None = service.methods_by_name.get(name)
        return found

    def narrow(self, name: str, data: bytes) -> bytes:
        """The bytes of a message without all that was added since."""
        message = self.message(name).FromString(data)
        message.DiscardUnknownFields()  # type: ignore[attr-defined]
        return message.SerializeToString()


@dataclass
class Narrowed(grpc.GenericRpcHandler):
    """A worker's methods as one of the release before serves them: what it does not know it neither reads
    nor says."""

    inner: grpc.GenericRpcHandler
    contract: Contract
    requests: list[Request] = field(default_factory=list)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        handler: Any = self.inner.service(details)
        name = details.method.rpartition("/")[2]
        method = self.contract.method(name)
        if handler is None or method is None:
            return None
        read, write = handler.request_deserializer, handler.response_serializer

        def request(data: bytes) -> Any:
            narrow = self.contract.narrow(method.input_type.name, data)
            self.requests.append(Request(name, narrow))
            return narrow if read is None else read(narrow)

        def response(message: Message) -> bytes:
            return self.contract.narrow(method.output_type.name, write(message))

        narrowed: grpc.RpcMethodHandler = handler._replace(
            request_deserializer=request, response_serializer=response
        )
        return narrowed


def write_session(requests: list[Request], path: Path) -> None:
    """Keeps what a caller wrote, one line for each message."""
    lines = [json.dumps({"stream": r.stream, "data": base64.b64encode(r.data).decode()}) for r in requests]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read_session(path: Path = FOLDER / "session.jsonl.gz") -> Iterator[Request]:
    """What an adapter of the release before wrote in one session, in its order."""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        told = json.loads(line)
        yield Request(told["stream"], base64.b64decode(told["data"]))
