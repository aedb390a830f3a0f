"""A runner of a foreign program that the kernel kills when the parent dies (Linux only).

    python -m antiphon_command.tethered PARENT COMMAND...

Foreign programs do not watch a pipe as `antiphon_command.guarded` does. PARENT is the parent's process id.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
    os.execvp(command[0], command)
