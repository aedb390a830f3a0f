"""A runner of a command that kills the process when its parent dies.

    python -m antiphon_command.guarded SCRATCH COMMAND ARGUMENTS...

Standard input is a pipe that the parent holds open without writing to it, so it ends only when the parent
dies. Then this program removes the folder SCRATCH, which the dead parent cannot, and ends at once.
"""

import os
import shutil
import signal
import sys
import threading

from antiphon_command.command import leave, main


def _end_with_parent(scratch: str) -> None:
    while os.read(0, 1):
        pass
    shutil.rmtree(scratch, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    leave(main(arguments))
