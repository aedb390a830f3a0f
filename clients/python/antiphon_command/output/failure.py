"""Failures of commands: messages with the problem, its reason and the remedy, and exit codes."""

import errno
from enum import IntEnum
from importlib.util import find_spec
from typing import Final

from antiphon.connection import refusals
from antiphon.errors import (
    AntiphonError,
    AudioError,
    AuthError,
    ConnectError,
    ImageError,
    QueueFull,
    VideoError,
)
from antiphon_service.listening import failed_address


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Usage or configuration."""
    DEVICE_LOST = 3
    NO_CONNECTION = 4
    VIOLATION = 5
    """`antiphon probe` found a violation of the protocol."""


class Failure(Exception):
    """An error that ends a command with a text for people and an exit code."""

    def __init__(self, text: str, code: int = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = int(code)


_WORKER: Final = {
    "torch": "PyTorch",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "grpc_health": "grpcio-health-checking",
    "PIL": "Pillow",
    "opentelemetry": "OpenTelemetry",
    "tornado": "Tornado",
}
_ADAPTER: Final = {
    "msgspec": "msgspec",
    "pybase64": "pybase64",
    "soxr": "soxr",
    "threadpoolctl": "threadpoolctl",
    "opentelemetry": "OpenTelemetry",
}
REQUIRED: Final = {
    "worker": _WORKER,
    "adapter": _ADAPTER,
    "all": _WORKER | _ADAPTER,
    "vllm": _WORKER | {"vllm": "vLLM"},
    "train": _WORKER | {"yaml": "PyYAML", "scipy": "SciPy", "tqdm": "tqdm"},
}
"""The packages of each extra: the top-level module and the name for messages."""


def require_extra(command: str, extra: str) -> None:
    """Raise `Failure` if a package of the extra is not installed, without importing any."""
    for module, name in REQUIRED[extra].items():
        if find_spec(module) is None:
            text = f"`antiphon {command}` needs {name}. Install with: pip install 'antiphon[{extra}]'"
            raise Failure(text, ExitCode.USAGE)


def require_telemetry() -> None:
    """Raise `Failure` for a variable that would make the import of the OpenTelemetry SDK fail."""
    from antiphon_service.telemetry.errors import TelemetryError
    from antiphon_service.telemetry.limits import check_span_limits

    try:
        check_span_limits()
    except TelemetryError as error:
        raise Failure(str(error), ExitCode.USAGE) from None


def bind_failure(error: OSError, host: str, port: int, option: str) -> Failure:
    """Return the failure of a server that cannot listen at an address; `option` names the port."""
    match error.errno:
        case errno.EADDRINUSE:
            text = (
                f"Port {port} is in use by another process{failed_address(error)}. "
                f"Choose another with {option}, or stop it."
            )
        case errno.EACCES:
            text = f"Port {port} is reserved for the administrator. Choose one above 1023 with {option}."
        case _:
            at = failed_address(error) or f" on {host}"
            text = f"Cannot listen{at}: {error.strerror}. Name an address of this machine with --host."
    return Failure(text, ExitCode.USAGE)


def explain(error: Exception) -> Failure:
    """Convert an exception that ended a command to a text and an exit code."""
    match error:
        case Failure():
            return error
        case ConnectError(reason="refused" | "unreachable" | "timeout"):
            text = f"{error} Is the server running? Start one with: antiphon serve"
            return Failure(text, ExitCode.NO_CONNECTION)
        case AuthError(reason="unauthorized"):
            why = str(error).removesuffix(refusals.PASS_KEY)
            remedy = "Name a file that holds it with --key-file, or set the variable ANTIPHON_API_KEY."
            return Failure(f"{why} {remedy}", ExitCode.NO_CONNECTION)
        case AuthError():
            return Failure(str(error), ExitCode.NO_CONNECTION)
        case ConnectError(reason="no_tls"):
            return Failure(str(error), ExitCode.NO_CONNECTION)
        case QueueFull() | ConnectError(retryable=True):
            return Failure(f"{error} Try again later.", ExitCode.NO_CONNECTION)
        case ConnectError():
            return Failure(str(error), ExitCode.NO_CONNECTION)
        case AudioError() | ImageError() | VideoError():
            return Failure(str(error), ExitCode.USAGE)
        case AntiphonError():
            return Failure(str(error))
        case OSError(errno=errno.ENOENT, filename=str(name)):
            return Failure(f"{name} does not exist. Check the path.", ExitCode.USAGE)
        case OSError(filename=str(name)):
            return Failure(f"Cannot use {name}: {error.strerror}.", ExitCode.USAGE)
    text = f"{type(error).__name__}: {error}. This is a defect; run again with --debug for the traceback."
    return Failure(text)
