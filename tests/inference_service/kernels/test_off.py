"""Without kernels every family says what was recorded of it, or what transformers' own model says.

`make long` runs all tests of engines and families so; here are those that compare with a reference.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GOLDEN = (
    "tests/inference_service/engine/golden/test_conversations.py",
    "tests/inference_service/engine/golden/test_chats.py",
    "tests/inference_service/families/test_causal.py",
    "tests/inference_service/families/test_voxtral.py",
    "tests/inference_service/families/test_minicpmo.py",
)
NAMED = "recorded or generate or as_transformers"


@pytest.mark.long
def test_families_without_kernels_keep_their_golden_tolerances() -> None:
    """In a process of its own, in which no compiled module may be loaded."""
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.support.without_kernels"]
    command = [sys.executable, "-m", "pytest", *options, "-k", NAMED, *GOLDEN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
