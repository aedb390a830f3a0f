"""`antiphon_command.guarded`, with a worker that plays a script instead of loading a model.

It fails at once where the folder of temporary files holds a file of the name `fault`.
"""

import functools
import os
import runpy
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import inference_service.app
from inference_service.interface.setups import Mode
from tests.support.scripted_engine import INFO, ScriptedEngine
from tests.support.scripted_worker import SCRIPTS

if (Path(tempfile.gettempdir()) / "fault").exists():
    sys.exit("no room for the model")
engine = ScriptedEngine(
    *SCRIPTS[os.environ["ANTIPHON_TEST_SCRIPT"]], repeat=True, info=replace(INFO, modes=frozenset(Mode))
)
inference_service.app.serve = functools.partial(inference_service.app.serve, factory=engine.start)
runpy.run_module("antiphon_command.guarded", run_name="__main__", alter_sys=True)
