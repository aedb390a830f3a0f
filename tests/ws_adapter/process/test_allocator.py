"""Memory that a unit frees is there for the next one."""

import subprocess
import sys

import pytest

UNITS = """
import resource, sys
from ws_adapter.process.allocator import keep_freed_memory

if "kept" in sys.argv:
    assert keep_freed_memory()

def unit():
    buffers = [bytearray(100_000) for _ in range(64)]
    for buffer in buffers:
        buffer[::4096] = bytes(len(buffer[::4096]))

for _ in range(3):
    unit()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    unit()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_pages_are_not_mapped_anew_for_every_unit() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", UNITS, how], capture_output=True, check=True).stdout)
        for how in ("default", "kept")
    ]
    assert faults[0] > 200, "the machine gives no reason for it"
    assert faults[1] < 20
