"""`antiphon`, whose workers play a script instead of loading a model."""

import functools
import sys

import inference_service.app
from antiphon_command.command import leave, main
from tests.support.scripted_engine import INFO, TALK, ScriptedEngine

SLOTS = 2

if __name__ == "__main__":
    engine = ScriptedEngine(*TALK, slots=SLOTS, repeat=True, info=INFO)
    inference_service.app.serve = functools.partial(inference_service.app.serve, factory=engine.start)
    leave(main(sys.argv[1:]))
