"""The entry point of the command `antiphon`.

The import of the commands takes a third of a second, and Ctrl-C during it would print a traceback. So this
module first installs its signal handler and then imports them.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_FAILED = 1


def main() -> NoReturn:
    """Run the command that the arguments of the process name, and exit with its exit code."""
    # A shell makes a command in the background ignore SIGINT; such a command keeps ignoring it.
    handles_sigint = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_sigint:
        signal.signal(signal.SIGINT, _interrupted)
    from antiphon_command.command import leave
    from antiphon_command.command import main as run

    try:
        if handles_sigint:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        _interrupted()
    leave(code)


def _interrupted(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> NoReturn:
    """Exit at once: nothing has begun, and an exception could get lost in a broken import."""
    print("Interrupted.", file=sys.stderr, flush=True)
    os._exit(_FAILED)
