"""A runner that starts a module like `python -m` and records every call of Antiphon's functions.

`python -m benchmarks.walk.traced FILE MODULE ARGUMENT...` writes FILE on SIGUSR1: a JSON list of [monotonic
seconds, thread, is root, module, function], in the order of the calls. A root call has no caller among
Antiphon's functions.
"""

import dis
import json
import runpy
import signal
import sys
import threading
import time
from collections import defaultdict
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
OURS: Final = ("ws_adapter/", "inference_service/", "clients/python/antiphon/")
_NOT_OURS: Final = ("clients/python/antiphon_command/", "clients/python/antiphon/v1/")
"""The paths of the code that starts the process, and of generated code."""


class Recorder:
    """A recorder of calls; `trace` is the profile function for the interpreter."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, bool, CodeType]] = []
        self._modules: dict[CodeType, str] = {}
        self._starts: dict[CodeType, int] = {}
        self._resumed: dict[str, FrameType] = {}
        """Thread -> a resumed coroutine that has made no call yet."""
        self._depths: dict[str, int] = defaultdict(int)

    def trace(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call or a return."""
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if not self.module(code):
            return
        thread = threading.current_thread().name
        depth = self._depths[thread]
        resumed = self._resumed.pop(thread, None)
        if event == "return":
            self._depths[thread] = max(0, depth - 1)
            return
        is_root = depth == 0
        if self._goes_on(frame):
            self._resumed[thread] = frame
            if resumed is not None and frame.f_back is resumed:
                # A coroutine that awaits another only resumes it, so its own call is dropped.
                is_root = self.calls.pop()[2]
        self.calls.append((time.monotonic(), thread, is_root, code))
        self._depths[thread] = depth + 1

    def _goes_on(self, frame: FrameType) -> bool:
        """Return whether the frame is a coroutine that resumes at an await."""
        code = frame.f_code
        if not code.co_flags & CO_COROUTINE:
            return False
        start = self._starts.get(code)
        if start is None:
            names = dis.get_instructions(code)
            start = self._starts[code] = next(step.offset for step in names if step.opname == "RESUME")
        return frame.f_lasti > start

    def module(self, code: CodeType) -> str:
        """Return the module of a function of Antiphon; empty for any other function."""
        known = self._modules.get(code)
        if known is None:
            known = self._modules[code] = _module(code.co_filename)
        return known

    def save(self, file: Path) -> None:
        """Write the recorded calls."""
        rows = [
            (at, thread, is_root, self.module(code), code.co_qualname)
            for at, thread, is_root, code in self.calls
        ]
        part = file.with_suffix(".part")
        part.write_text(json.dumps(rows))
        part.rename(file)


def _module(filename: str) -> str:
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return ""
    name = str(path.relative_to(ROOT))
    if not name.startswith(OURS) or name.startswith(_NOT_OURS):
        return ""
    return name.removeprefix("clients/python/").removesuffix(".py").replace("/", ".")


def main() -> None:
    """Run from the command line."""
    file, module, *arguments = sys.argv[1:]
    recorder = Recorder()
    signal.signal(signal.SIGUSR1, lambda *_: recorder.save(Path(file)))
    sys.argv = [module, *arguments]
    threading.setprofile(recorder.trace)
    sys.setprofile(recorder.trace)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
