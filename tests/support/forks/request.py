"""Requests to the server of forks."""

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

_MOST: Final = 1 << 17

_WORKER: Final = (
    "inference_service.app",
    "inference_service.engine.engine",
    "inference_service.families.antiphon_mini",
    "inference_service.families.duplex_runtime",
    "inference_service.families.table",
)
_IMPORTS: Final = {
    "antiphon_command": tuple(
        f"antiphon_command.commands.{name}" for name in ("bench", "chat", "probe", "talk")
    ),
    "antiphon_command adapter": ("antiphon_command.commands.adapter", "ws_adapter.app"),
    "antiphon_command worker": (
        "antiphon_command.commands.worker",
        *_WORKER,
        "inference_service.families.warmup",
    ),
    "tests.support.faulty_worker": (*_WORKER, "tests.support.faults"),
    "tests.support.scripted_worker": (
        "antiphon_command.arguments.shared_key",
        "inference_service.app",
        "tests.support.scripted_engine",
    ),
}
"""By module, or by module and first argument: what is imported before it is forked."""


@dataclass(frozen=True)
class Request:
    """`python -m MODULE ARGUMENTS...` with this environment in this folder."""

    module: str
    arguments: Sequence[str]
    environment: dict[str, str]
    folder: str

    @property
    def imports(self) -> Sequence[str]:
        command = " ".join((self.module, *self.arguments[:1]))
        return _IMPORTS.get(command) or _IMPORTS.get(self.module, ())

    def send(self, control: socket.socket, files: Sequence[int]) -> None:
        """With standard input, output and error, and the socket that is told process id and exit code."""
        socket.send_fds(control, [json.dumps(asdict(self)).encode()], files)


def receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """See `Request.send`; None at the end of requests."""
    told, files, _, _ = socket.recv_fds(control, _MOST, 4)
    return (Request(**json.loads(told)), files) if told else None
