"""Run a command under the system call filters and without the capabilities that a systemd unit names.

`python -m tests.deploy.confined UNIT COMMAND...` installs with libseccomp what systemd installs for
SystemCallFilter=, SystemCallArchitectures=, MemoryDenyWriteExecute=, RestrictAddressFamilies=,
RestrictNamespaces=, RestrictSUIDSGID= and NoNewPrivileges=, drops every capability where it has some
(CapabilityBoundingSet=), and then becomes the command. File systems, devices and addresses stay as they are.
"""

import ctypes
import ctypes.util
import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tests.deploy.units import directives

LIBRARY = ctypes.util.find_library("seccomp")
SYSTEMD = shutil.which("systemd-analyze")
MISSING = "libseccomp or systemd-analyze is not installed: apt install libseccomp2 systemd"

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PROT_WRITE, _PROT_EXEC, _SHM_EXEC, _SET_ID = 2, 4, 0o100000, 0o6000
_NAMESPACES = (0x80, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEW* of all kinds of namespaces."""


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter:
    """One seccomp filter; the kernel applies the strictest answer of all that are loaded."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL(LIBRARY, use_errno=True)
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, call: str, *compares: _Compare) -> None:
        """Answer `call` with `action` where all `compares` hold; unknown calls are skipped."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            array = (_Compare * len(compares))(*compares)
            _check(
                self._library.seccomp_rule_add_array(
                    self._context, ctypes.c_uint32(action), number, len(compares), array
                )
            )

    def load(self) -> None:
        """Install it for this process and all that come from it."""
        _check(self._library.seccomp_load(self._context))


def allowed_calls(rules: list[str]) -> set[str]:
    """Return the system calls that the SystemCallFilter= lines `rules` allow, as systemd expands them."""
    calls = _expand("@default")
    for rule in rules:
        named = set().union(*(_expand(name) for name in rule.removeprefix("~").split()))
        calls = calls - named if rule.startswith("~") else calls | named
    return calls


def confine(unit: Path) -> None:
    """Confine this process as `unit` says."""
    given = directives(unit)
    _drop_capabilities()
    calls = Filter(_ERRNO | errno.EPERM)
    for call in allowed_calls(given["SystemCallFilter"]):
        calls.add(_ALLOW, call)
    denied = Filter(_ALLOW)
    refuse = _ERRNO | errno.EPERM
    if given.get("MemoryDenyWriteExecute") == ["yes"]:
        both = _PROT_WRITE | _PROT_EXEC
        denied.add(refuse, "mmap", _Compare(2, _MASKED_EQUAL, both, both))
        for call in ("mprotect", "pkey_mprotect"):
            denied.add(refuse, call, _Compare(2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC))
        denied.add(refuse, "shmat", _Compare(2, _MASKED_EQUAL, _SHM_EXEC, _SHM_EXEC))
    families = {int(getattr(socket, name)) for name in given["RestrictAddressFamilies"][0].split()}
    for family in set(range(64)) - families:
        denied.add(_ERRNO | errno.EAFNOSUPPORT, "socket", _Compare(0, _EQUAL, family, 0))
    if given["RestrictNamespaces"] == ["yes"]:
        denied.add(_ERRNO | errno.ENOSYS, "clone3")
        denied.add(refuse, "setns")
        for flag in _NAMESPACES:
            for call in ("clone", "unshare"):
                denied.add(refuse, call, _Compare(0, _MASKED_EQUAL, flag, flag))
    if given["RestrictSUIDSGID"] == ["yes"]:
        for call, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2)):
            for bit in (0o4000, 0o2000):
                denied.add(refuse, call, _Compare(place, _MASKED_EQUAL, bit, bit))
    denied.load()
    calls.load()  # last: it allows no further filter


def _expand(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    command = [SYSTEMD or "systemd-analyze", "syscall-filter", name]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return set().union(*(_expand(each) for each in names))


def _drop_capabilities() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if os.geteuid() == 0:
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        for capability in range(last + 1):
            _check(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        _check(libc.capset(header, (ctypes.c_uint32 * 6)()))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(abs(result), "the process could not be confined")


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
