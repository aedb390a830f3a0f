"""Forks Python processes once it has imported what they need.

    python -m tests.support.forks.server FD

takes requests from whoever connects to the Unix socket FD, until its standard input is closed.
"""

import gc
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module

from antiphon_command.command import leave
from tests.support.forks.request import Request, receive

_STDIN = 0


class Server:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._callers: list[socket.socket] = []
        self._links: dict[int, socket.socket] = {}
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> Request | None:
        """Returns None at the end, and in each process that it forks what that one shall run."""
        while True:
            readable, _, _ = select.select([_STDIN, self._woken, self._listener, *self._callers], [], [])
            if _STDIN in readable:
                return None
            if self._woken in readable:
                os.read(self._woken, 4096)
                self._tell_ends()
            if self._listener in readable:
                self._callers.append(self._listener.accept()[0])
            for caller in [caller for caller in self._callers if caller in readable]:
                told = receive(caller)
                if told is None:
                    self._callers.remove(caller)
                    caller.close()
                elif self._fork(*told):
                    return told[0]

    def _fork(self, request: Request, files: list[int]) -> bool:
        _import(request)
        *standard, link = files
        pid = os.fork()
        if pid == 0:
            self._become_a_process(files)
            return True
        for file in standard:
            os.close(file)
        self._links[pid] = socket.socket(fileno=link)
        _tell(self._links[pid], pid)
        return False

    def _become_a_process(self, files: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        for file in (*files, self._woken, self._wakes):
            os.close(file)
        for each in (self._listener, *self._callers, *self._links.values()):
            each.close()

    def _tell_ends(self) -> None:
        while self._links:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._links.pop(pid) as link:
                _tell(link, os.waitstatus_to_exitcode(status))


def _import(request: Request) -> None:
    missing = [name for name in request.imports if name not in sys.modules]
    for name in missing:
        import_module(name)
    if missing:
        gc.collect()
        gc.freeze()  # whoever is forked would copy all of it by looking for garbage in it


def _tell(link: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody asks any more
        link.send(str(number).encode())


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        request = Server(listener).serve()
    if request is not None:
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        leave(_run(request))


def _run(request: Request) -> int:
    """The exit code. Taking the interpreter apart at its end costs as much as a start: see `leave`."""
    sys.argv = ["", *request.arguments]
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
