"""The entry point of the command `antiphon`.

Importing the commands takes a third of a second, in which Ctrl-C would print a traceback from an import. So
this module first installs its signal handler and then imports them.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_FAILED = 1


def main() -> NoReturn:
    """Run the command in the process's arguments and end the process with its exit code."""
    # A shell that runs a command in the background makes it ignore Ctrl-C, which must stay so.
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
    """Exit at once: nothing has begun, and an exception could get lost in a broken import."""
    print("Interrupted.", file=sys.stderr, flush=True)
    os._exit(_FAILED)
