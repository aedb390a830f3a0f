"""`antiphon serve` with the shipped checkpoint: how fast it lets go."""

import signal
import subprocess
import time

from tests.cli.support.process import ANTIPHON
from tests.support.long import long
from tests.support.patience import PATIENCE_S

TRIES = 3
AT_ONCE_S = 3.0
"""A third of a second where nothing else runs; whoever waits for sessions waits for ten."""


def seconds_to_end() -> float:
    """From Ctrl-C to the end of a server that nobody talks to."""
    command = [*ANTIPHON, "serve", "--port", "0", "--slots", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as serve:
        assert serve.stdout is not None
        for line in serve.stdout:
            if "Ctrl-C" in line:
                break
        begin = time.monotonic()
        serve.send_signal(signal.SIGINT)
        assert serve.wait(PATIENCE_S) == 0
        return time.monotonic() - begin


@long
def test_ctrl_c_when_idle_waits_for_nobody() -> None:
    """A machine that is busy with something else gets another try."""
    assert any(seconds_to_end() < AT_ONCE_S for _ in range(TRIES))
