"""A checkpoint of random weights in the published layout: written, completed, verified, and served."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from benchmarks.full_size import shards, worker
from benchmarks.full_size.__main__ import main
from benchmarks.full_size.folder import FolderRefused, write_folder
from benchmarks.full_size.shards import SUMS
from benchmarks.full_size.sizes import FULL, TINY, Size
from benchmarks.full_size.tensors import PIECE, model_tensors, vocoder_tensors
from inference_service.families import table
from tests.inference_service.models.minicpmo import published
from tests.support.long import long
from tests.support.patience import START_S

CPU = torch.device("cpu")
FIRST = "model-00001-of-00006.safetensors"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full_size") / "tiny"
    write_folder(folder, TINY)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "tiny"))


def weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/model*.safetensors"))


def changed(folder: Path, before: dict[Path, int]) -> list[str]:
    """Names of files that were written anew."""
    return [path.name for path in weights(folder) if path.stat().st_ino != before.get(path)]


def places(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in weights(folder)}


def test_names_and_shapes_are_those_of_the_recorded_checkpoint() -> None:
    with safe_open(published.SOURCE / "model.safetensors", "pt") as file:
        recorded = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    unused = "tts.model.embed_tokens.weight"  # cut to 16 rows in the recording
    ours = {it.name: it.shape for it in model_tensors(TINY)}
    assert ours.pop(unused)[1] == recorded.pop(unused)[1]
    assert ours == recorded


def test_full_size_has_the_published_bytes_and_is_drawn_in_pieces() -> None:
    tensors = model_tensors(FULL)
    assert {it.dtype for it in tensors} == {torch.bfloat16}
    assert sum(it.nbytes for it in tensors) == pytest.approx(18.7e9, rel=0.01)
    assert sum(it.nbytes for it in vocoder_tensors(FULL)) == pytest.approx(0.7e9, rel=0.02)
    assert len(shards.shards(tensors, FULL.shard_bytes)) == 5
    assert next(max(tensors, key=lambda it: it.nbytes).pieces()).numel() <= PIECE


@pytest.mark.long
def test_worker_with_kernels_off_holds_no_second_copy_of_mapped_weights(written: Path) -> None:
    """In a process of its own: kernels are chosen once."""
    code = f"""
import torch
from pathlib import Path
from inference_service.kernels import selection
selection.select("off")
from inference_service.checkpoints.minicpmo import load_minicpmo
folder = Path({str(written)!r})
model = load_minicpmo(folder, torch.device("cpu"), torch.bfloat16).model
lines = [it.split()[0] for it in Path("/proc/self/maps").read_text().splitlines() if str(folder) in it]
spans = [[int(end, 16) for end in line.split("-")] for line in lines]
for name, tensor in model.named_parameters():
    if not any(begin <= tensor.data_ptr() < end for begin, end in spans):
        print(name)
"""
    outside = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=START_S, check=True
    )

    assert outside.stdout.split() == ["tts.head_code.0.weight"], "a weight norm, folded into one matrix"


def test_two_runs_write_the_same_with_the_digests_of_the_files(written: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "again", TINY)
    assert (tmp_path / "again" / SUMS).read_text() == (written / SUMS).read_text()
    lines = [line.split("  ") for line in (written / SUMS).read_text().splitlines()]
    assert [name for _, name in lines] == [path.name for path in weights(written) if path.parent == written]
    assert all(hashlib.sha256((written / name).read_bytes()).hexdigest() == digest for digest, name in lines)


def test_second_run_writes_no_file_but_one_with_a_changed_byte(folder: Path, written: Path) -> None:
    before = places(folder)
    assert write_folder(folder, TINY).kept == len(before)
    assert changed(folder, before) == []

    data = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = places(folder)
    write_folder(folder, TINY)
    assert changed(folder, before) == [FIRST]
    assert (folder / FIRST).read_bytes() == (written / FIRST).read_bytes()


def test_run_after_interruption_writes_only_missing_files(folder: Path, written: Path) -> None:
    (folder / FIRST).rename(folder / (FIRST + ".part"))
    (folder / SUMS).write_text((folder / SUMS).read_text().split("\n", 1)[1] + "no line of sums\n")
    before = places(folder)
    write_folder(folder, TINY)
    assert changed(folder, before) == [FIRST]
    assert not list(folder.glob("*.part"))
    assert (folder / SUMS).read_text() == (written / SUMS).read_text()


def test_write_that_fails_leaves_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path / "tiny", TINY)

    assert weights(tmp_path / "tiny") == []


def test_disk_space_check_counts_only_missing_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / FIRST).unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=70 << 20))
    assert write_folder(folder, TINY).kept == 6
    with pytest.raises(FolderRefused, match=r"72\.\d MiB are needed for .*; 70\.0 MiB are free there"):
        write_folder(tmp_path / "another", TINY)
    assert not (tmp_path / "another").exists()


def test_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    other = Size("other", {"rms_norm_eps": 1e-5}, TINY.vocoder, TINY.shard_bytes, 1.0)
    for place, size in ((tmp_path / "other", TINY), (folder, other)):
        with pytest.raises(FolderRefused, match="holds something else"):
            write_folder(place, size)
    assert (tmp_path / "other/notes.txt").read_text() == "mine"


def served(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[object]) -> int:
    monkeypatch.setattr("sys.argv", ["full_size", *map(str, arguments)])
    return main()


@pytest.mark.long
def test_tiny_checkpoint_is_served_and_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.full_size.__main__.predicted_bytes", told)
    assert served(monkeypatch, [folder, "--size", "tiny"]) == 0
    out = capsys.readouterr().out
    assert all(f"| {asked}" in out for asked in ("a listening unit", "a speaking unit", "a chat with a"))
    assert "mapped from files" in out


def told(folder: Path) -> int:
    """As it tells, without a choice of kernels for this process."""
    return table.footprint(folder, CPU, worker.CONTEXT_LIMIT, "bfloat16").total(1) + (1 << 29)


@pytest.mark.long
def test_worker_start_failure_prints_its_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert served(monkeypatch, [folder, "--size", "tiny", "--device", "cuda:7"]) == 2
    assert "Cannot use the device 'cuda:7'" in capsys.readouterr().err


@long
def test_tenth_size_model_is_served_within_reported_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.full_size", str(tmp_path / "tenth")]
    command += ["--size", "tenth", "--remove"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "tenth").exists()
