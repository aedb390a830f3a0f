"""gRPC's polling thread does not preempt the event loop."""

import subprocess
import sys

import pytest

POLICIES = """
import os, sys
from ws_adapter.process.scheduling import start_grpc

def refuse(*arguments):
    raise PermissionError("a filter of system calls")

if sys.argv[1] == "refused":
    os.sched_setscheduler = refuse
if sys.argv[1] == "chosen":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
start_grpc()
threads = [int(name) for name in os.listdir("/proc/self/task")]
names = {os.SCHED_OTHER: "other", os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle"}
print(names[os.sched_getscheduler(0)])
print(*{names[os.sched_getscheduler(thread)] for thread in threads if thread != os.getpid()})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these policies")
@pytest.mark.parametrize(
    ("situation", "own", "of_grpc"),
    [("usual", "other", {"batch"}), ("refused", "other", set()), ("chosen", "idle", set())],
)
def test_policy_is_of_the_polling_thread_alone(situation: str, own: str, of_grpc: set[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", POLICIES, situation], capture_output=True, text=True, check=True
    )
    main, others = run.stdout.splitlines()
    assert main == own
    assert set(others.split()) == of_grpc
