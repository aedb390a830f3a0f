"""The entry point of the command `antiphon`.

Loading the package takes a third of a second, in which Ctrl-C would be told by a traceback from somewhere in
an import. So this one stands outside it, and loads it only once it listens.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_FAILED = 1


def main() -> NoReturn:
    """Runs the command that the process's arguments name, and ends the process with its exit code."""
    # A shell that runs a command in the background has Ctrl-C ignored, and so shall it stay.
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, _interrupted)
    from antiphon_command.command import leave
    from antiphon_command.command import main as run

    try:
        if listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        _interrupted()
    leave(code)


def _interrupted(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> NoReturn:
    """Nothing is begun yet, so there is nothing to end; an exception could get lost in a broken import."""
    print("Interrupted.", file=sys.stderr, flush=True)
    os._exit(_FAILED)
