"""What is asked of the server of forks."""

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

_MOST: Final = 1 << 17
"""Bytes of a request."""

_WORKER: Final = (
    "inference_service.app",
    "inference_service.engine.engine",
    "inference_service.families.antiphon_mini",
    "inference_service.families.duplex_runtime",
    "inference_service.families.table",
)
_IMPORTS: Final = {
    "antiphon.cli adapter": ("antiphon.cli.commands.adapter", "ws_adapter.app"),
    "antiphon.cli worker": ("antiphon.cli.commands.worker", *_WORKER, "inference_service.families.warmup"),
    "tests.support.faulty_worker": (*_WORKER, "tests.support.faults"),
    "tests.support.scripted_worker": (
        "antiphon.cli.arguments.shared_key",
        "inference_service.app",
        "tests.support.scripted_engine",
    ),
}
"""By module, or by module and first argument: what is imported before it is forked."""


@dataclass(frozen=True)
class Request:
    """`python -m MODULE ARGUMENTS...` with this environment."""

    module: str
    arguments: Sequence[str]
    environment: dict[str, str]

    @property
    def imports(self) -> Sequence[str]:
        """See `_IMPORTS`."""
        return _IMPORTS.get(self.module) or _IMPORTS.get(f"{self.module} {self.arguments[0]}", ())

    def send(self, control: socket.socket, files: Sequence[int]) -> None:
        """With standard input, output and error, and the socket that is told process id and exit code."""
        socket.send_fds(control, [json.dumps(asdict(self)).encode()], files)


def receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """See `Request.send`; None if nobody will ask any more."""
    told, files, _, _ = socket.recv_fds(control, _MOST, 4)
    return (Request(**json.loads(told)), files) if told else None
