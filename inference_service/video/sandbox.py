"""Sandboxing of a decoder's process: no files, network or other processes, little memory, low priority.

Resource limits apply on every Linux. The filter of system calls applies on x86-64 and ARM64 where the process
may install one. Elsewhere the limits still prevent it from opening descriptors.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
from typing import Final

MEMORY_BYTES: Final = 1 << 30
_MOST_CPU_S: Final = 120
_LOWEST_PRIORITY: Final = 19

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2

_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_NOT_PERMITTED: Final = 0x00050001
_AT_NUMBER, _AT_MACHINE = 0, 4

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# In this order: read, write, close, fstat, lseek, poll; mmap, mprotect, munmap, brk, mremap, madvise;
# rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack; sched_yield, nanosleep, clock_nanosleep,
# clock_gettime, gettimeofday; getpid, gettid, getrusage, sched_getaffinity; futex, rseq, membarrier;
# getrandom; exit, exit_group.
_CALLS: Final = {
    "x86_64": (
        *(0, 1, 3, 5, 8, 7, 9, 10, 11, 12, 25, 28, 13, 14, 15, 131, 24, 35, 230, 228, 96),
        *(39, 186, 98, 204, 202, 334, 324, 318, 60, 231),
    ),
    "aarch64": (
        *(63, 64, 57, 80, 62, 73, 222, 226, 215, 214, 216, 233, 134, 135, 139, 132, 124, 101, 115, 113, 169),
        *(172, 178, 165, 123, 98, 293, 283, 278, 93, 94),
    ),
}
"""System calls of a decoder that has loaded its libraries; all others fail with EPERM."""


def enter() -> None:
    """Give up all rights for good, except to read, compute, and write to open descriptors."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_PRIORITY)
    for limit, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, _MOST_CPU_S),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(limit, value)
    call = ctypes.CDLL(None, use_errno=True).prctl
    call(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    call(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if (machine := platform.machine()) in _CALLS:
        rules = _filter(machine)
        program = ctypes.create_string_buffer(rules, len(rules))
        head = struct.pack("HxxxxxxP", len(rules) // 8, ctypes.addressof(program))
        call(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0)


def _limit(limit: int, value: int) -> None:
    """Lower a limit for good, unless a filter of the service manager forbids it.

    The worker also checks memory and processor time.
    """
    _, hard = resource.getrlimit(limit)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError):
        resource.setrlimit(limit, (lowest, lowest))


def _filter(machine: str) -> bytes:
    """Return a BPF program that allows only the calls of `machine`."""
    calls = _CALLS[machine]
    rules = [
        (_LOAD, 0, 0, _AT_MACHINE),
        (_IF_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
        *((_IF_EQUAL, len(calls) - i, 0, number) for i, number in enumerate(calls)),
        (_RETURN, 0, 0, _NOT_PERMITTED),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *rule) for rule in rules)
