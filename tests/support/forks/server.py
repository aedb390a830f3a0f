"""Forks Python processes once it has imported what they need.

    python -m tests.support.forks.server FD

takes requests from the Unix socket FD until nobody has its other end.
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

from antiphon.cli.main import leave
from tests.support.forks.request import Request, receive


def serve(control: socket.socket) -> Request | None:
    """Returns None at the end, and in each process that it forks what that one shall run."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    links: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _tell_ends(links)
        if control in readable:
            told = receive(control)
            if told is None:
                return None
            request, (*standard, link) = told
            _import(request)
            links[-1] = socket.socket(fileno=link)
            pid = os.fork()
            if pid == 0:
                _become_a_process(standard, [woken, wakes], [control, *links.values()])
                return request
            for file in standard:
                os.close(file)
            links[pid] = links.pop(-1)
            _tell(links[pid], pid)


def _import(request: Request) -> None:
    missing = [name for name in request.imports if name not in sys.modules]
    for name in missing:
        import_module(name)
    if missing:
        gc.collect()
        gc.freeze()  # whoever is forked would copy all of it by looking for garbage in it


def _become_a_process(standard: list[int], files: list[int], sockets: list[socket.socket]) -> None:
    """Nothing of the server is left."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(standard):
        os.dup2(file, number)
    for file in (*standard, *files):
        os.close(file)
    for each in sockets:
        each.close()


def _tell_ends(links: dict[int, socket.socket]) -> None:
    """Exit codes of all that have ended."""
    while links:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with links.pop(pid) as link:
            _tell(link, os.waitstatus_to_exitcode(status))


def _tell(link: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody asks any more
        link.send(str(number).encode())


def main() -> None:
    """Serves; each process that is forked runs its module instead."""
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = serve(control)
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
