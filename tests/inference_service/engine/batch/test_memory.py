"""How much memory there is, and how much a tick takes of it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inference_service.engine.batch.memory import free_bytes
from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.memory import footprint
from inference_service.kernels.packed_linear import supports
from tests.inference_service.engine.support import tiny_causal
from tests.support.long import long

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MIB = 2**20
ROOT = Path(__file__).parents[4]


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A root folder with 1000 MiB of free memory, and files of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {1000 * 1024} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group(folder: str, limit: str, used: int = 0, stat: str = "") -> dict[str, str]:
    """The files of a group of version 2."""
    told = {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}
    return {f"{folder}/{name}": text for name, text in told.items()}


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("0::/\n", group(".", "max", 5), 1000),
        (
            "0::/\n",
            group(".", str(300 * MIB), 100 * MIB, f"anon 7\ninactive_file {20 * MIB}\n"),
            300 - 100 + 20,
        ),
        (
            "0::/system.slice/worker.service\n",
            group("system.slice", str(200 * MIB)) | group("system.slice/worker.service", "max"),
            200,
        ),
        (
            "9:cpu,memory:/docker/abc\n0::/\n",
            {
                "memory/memory.limit_in_bytes": f"{400 * MIB}",
                "memory/memory.usage_in_bytes": f"{150 * MIB}",
                "memory/memory.stat": f"total_inactive_file {50 * MIB}\n",
            },
            400 - 150 + 50,
        ),
    ],
    ids=["host", "container", "group above", "version 1"],
)
def test_free_host_memory_respects_cgroup_limits(
    tmp_path: Path, groups: str, files: dict[str, str], free: int
) -> None:
    assert free_bytes(CPU, machine(tmp_path, groups, files)) == free * MIB


def test_free_memory_without_host_information_is_unknown(tmp_path: Path) -> None:
    assert free_bytes(CPU, tmp_path) is None


def measured_and_told(of: str) -> tuple[int, int]:
    command = [sys.executable, "-m", "tests.inference_service.engine.support.peak", of]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    measured, told = map(int, done.stdout.split())
    return measured, told


@pytest.mark.long
def test_forward_memory_stays_within_reported_peak() -> None:
    measured, told = measured_and_told("forward")
    assert told / 3 < measured <= told


@long
@pytest.mark.skipif(not supports(torch.float32), reason="this torch has no packed weights")
def test_kernel_memory_stays_within_reported_amount() -> None:
    """All row counts run in a subprocess, in which other memory may grow too."""
    found = []
    for _ in range(3):
        measured, told = measured_and_told("kernels")
        found.append(measured)
        if measured <= told:
            break
    assert told / 3 < min(found) <= told


def test_attention_scores_count_towards_forward_memory(tmp_path: Path) -> None:
    folder = tiny_causal.save(tmp_path / "tiny")
    host, device = (table.footprint(folder, where, 256, "float32").working for where in (CPU, CUDA))
    assert device["forward"] > host["forward"] + 4 * 256 * 256


def test_slots_within_memory_match_reported_states() -> None:
    told = footprint.Footprint({"all": 7}, {"context": 10}, {"voice": 3}, {"forward": 25}, {"vocoder": 4})
    for slots in range(1, 50):
        assert told.slots_within(told.states(slots)) == slots
        assert told.slots_within(told.states(slots) - 1) == slots - 1
    assert [told.states(slots) - 10 * slots for slots in (1, 6, 7, 8, 9)] == [28, 28, 31, 35, 35]


def test_slots_beside_which_no_tick_would_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_causal.save(tmp_path / "tiny")
    told = table.footprint(folder, CPU, 256)
    assert told.states(3) > 3 * sum(told.session.values()) + told.working["forward"] - 1
    build = table.load(folder, CPU, 256)
    monkeypatch.setattr(footprint, "free_bytes", lambda device: told.states(3))
    build(3)
    monkeypatch.setattr(footprint, "free_bytes", lambda device: told.states(3) - 1)
    with pytest.raises(ConfigurationError, match=r"largest step of a tick.*Pass --slots 2 or less"):
        build(3)
