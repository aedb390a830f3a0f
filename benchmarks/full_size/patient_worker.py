"""`antiphon worker` with longer time limits.

A full-size model on a CPU takes longer than ten seconds per step, after which a worker treats its device as
hung.
"""

import sys
from functools import partial
from typing import Final

from antiphon_command.command import main
from inference_service import app
from inference_service.session.machine import Limits

PATIENCE_S: Final = 1_800.0


def run() -> int:
    """Run `antiphon worker` with the arguments of this process; return its exit code."""
    patient = Limits(config_s=PATIENCE_S, unit_s=PATIENCE_S, step_s=PATIENCE_S)
    app.serve = partial(app.serve, limits=patient)
    return main(["worker", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run())
