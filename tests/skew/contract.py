"""The gRPC contract of the release before, and a worker that knows no more than that."""

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from inference_service.transport.call import Call, Handler
from inference_service.transport.call import Message as Data
from inference_service.transport.server import Answer

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
class Narrowed:
    """A worker's methods as one of the release before serves them: what it does not know it neither reads
    nor says."""

    contract: Contract
    requests: list[Request] = field(default_factory=list)

    def methods(self, today: Mapping[str, Answer]) -> dict[str, Answer]:
        """Those that the release before had."""
        found = ((path, self.contract.method(path.rpartition("/")[2])) for path in today)
        return {path: partial(self._answer, today[path], method) for path, method in found if method}

    def _answer(self, answer: Answer, method: MethodDescriptor, call: Call) -> None:
        take, write = call.take, call.write

        def narrow(data: Data) -> memoryview:
            narrowed = self.contract.narrow(method.input_type.name, bytes(data))
            self.requests.append(Request(method.name, narrowed))
            return memoryview(narrowed)

        narrowed: Any = _NarrowCall(
            call,
            lambda handler, *metadata: take(_NarrowHandler(handler, narrow), *metadata),
            lambda message: write(self.contract.narrow(method.output_type.name, message)),
        )
        answer(narrowed)


class _NarrowCall:
    """A call, but for these two."""

    def __init__(self, call: Call, take: Any, write: Any) -> None:
        self.__dict__.update(_call=call, take=take, write=write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._call, name, value)


class _NarrowHandler:
    """A handler that is told less."""

    def __init__(self, handler: Handler, narrow: Callable[[Data], memoryview]) -> None:
        self._handler = handler
        self._narrow = narrow

    def message_received(self, data: Data) -> None:
        self._handler.message_received(self._narrow(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


def write_session(requests: list[Request], path: Path) -> None:
    """Keeps what a caller wrote, one line for each message."""
    lines = [json.dumps({"stream": r.stream, "data": base64.b64encode(r.data).decode()}) for r in requests]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read_session(path: Path = FOLDER / "session.jsonl.gz") -> Iterator[Request]:
    """What an adapter of the release before wrote in one session, in its order."""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        told = json.loads(line)
        yield Request(told["stream"], base64.b64decode(told["data"]))
