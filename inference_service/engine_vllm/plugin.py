"""The plugin of vLLM's processes, run at their start. Found by the entry point group
`vllm.general_plugins`.
"""

import ctypes
import os
import signal
import sys
from typing import Final

WORKER: Final = "ANTIPHON_VLLM_WORKER"
"""Variable with the process id of the Antiphon worker; without it the plugin does nothing."""
_PR_SET_PDEATHSIG: Final = 1


def follow_worker() -> None:
    """Ignore Ctrl-C, which the worker handles by draining, and end when the parent process ends."""
    worker = os.environ.get(WORKER, "")
    if worker in ("", str(os.getpid())):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1 and worker != "1":  # the parent ended before the call above
            os._exit(1)
