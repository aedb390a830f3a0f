"""Tests of `antiphon check-config`: the memory of a model before it is loaded."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import MambaConfig

from inference_service.kernels.selection import usable
from tests.cli.support.process import run_cli, run_here
from tests.inference_service.models.minicpmo import published, whole
from tests.support.long import long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole.write(tmp_path_factory.mktemp("models") / "tiny")


def rows(out: str) -> dict[tuple[str, str], str]:
    """The size of each kind."""
    columns = [(line[:14].strip(), line[14:32].strip(), line[32:].strip()) for line in out.splitlines()]
    return {(title, kind): size for title, kind, size in columns}


def test_check_config_lists_bytes_by_part_and_kind_of_state(folder: Path) -> None:
    done = run_cli("check-config", "--model", str(folder), "--slots", "2")

    assert done.code == 0
    told = rows(done.out)
    assert {kind for title, kind in told if title == "weights"} == {
        "language model", "ear", "eye", "speech head", "vocoder",
    }  # fmt: skip
    kinds = {"context", "ear", "speech head", "vocoder", "voice"}
    assert {kind for title, kind in told if title == "a session"} == kinds
    steps = {"forward", "ear", "pictures", "speech"}
    assert {kind for title, kind in told if title == "a step"} == steps
    assert ("a step, each", "vocoder") in told
    assert told["a session", "context"] == "8.2 MiB"  # 8588 rows of 2 layers, 2 heads of 32, float32
    assert ("2 sessions", "with the weights") in told


@pytest.mark.parametrize("threads", [1, 2])
def test_sessions_that_do_not_fit_are_refused_with_the_number_that_fits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """oneDNN keeps kernels for each number of rows; our own product has one thread."""
    set_threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_threads.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: set_threads[-1])
    given = ("--slots", "50", "--memory-gib", "0.5", "--threads", str(threads))
    done = run_here("check-config", "--model", str(folder), *given)

    assert done.code == 2
    fit = 28 if usable("linear") and threads == 1 else 11
    assert f"50 sessions do not fit: at most {fit} do." in done.err


@long
def test_kernels_off_counts_the_memory_of_onednn_kernels(folder: Path) -> None:
    """In a process of its own: this one may compute with kernels already."""
    usual, off = (
        rows(run_cli("check-config", "--model", str(folder), "--slots", "1", *more).out)["shared", "kernels"]
        for more in ([], ["--kernels", "off"])
    )

    assert off == "0.23 GiB"
    assert usual == ("15.0 MiB" if usable("linear") else off)


def test_unconverted_vocoder_counts_with_its_published_size(tmp_path: Path) -> None:
    published.write(tmp_path / "tiny")
    usual, half = (
        rows(run_here("check-config", "--model", str(tmp_path / "tiny"), "--slots", "1", *more).out)
        for more in ([], ["--vocoder-dtype", "bfloat16"])
    )

    assert usual["a session", "vocoder"] == "0.38 GiB"
    assert half["a session", "vocoder"] == "0.19 GiB"


def test_check_config_on_gpu_lists_token_memory_and_untested_parts(folder: Path) -> None:
    usual, gpu = (
        rows(run_here("check-config", "--model", str(folder), "--slots", "2", *more).out)
        for more in ([], ["--device", "cuda", "--memory-gib", "8"])
    )

    assert gpu["a step, each", "tokens"] == "2.0 MiB"  # of one of 2 layers, and in bfloat16
    assert ("tokens", "not run on CUDA") in gpu
    assert not any("token" in part for line in usual for part in line)


def test_process_memory_counts_only_on_this_machine_and_no_speech_omits_the_vocoder(folder: Path) -> None:
    def told(*more: str) -> dict[tuple[str, str], str]:
        return rows(run_here("check-config", "--model", str(folder), "--slots", "1", *more).out)

    assert told()["process", "with libraries"].endswith("GiB")
    assert ("process", "with libraries") not in told("--memory-gib", "8")
    assert {kind for title, kind in told("--no-speech") if title == "a session"} == {"context", "ear"}
    assert rows(run_here("check-config", "--model", "antiphon-mini").out)["a session", "context"] == "8.7 MiB"


def test_voice_memory_does_not_count_without_a_speaker_encoder(folder: Path, tmp_path: Path) -> None:
    without = Path(shutil.copytree(folder, tmp_path / "tiny"))
    (without / "vocoder/campplus.onnx").unlink()

    told = rows(run_here("check-config", "--model", str(without), "--slots", "1").out)

    assert ("a session", "voice") not in told


def test_model_with_unknown_memory_is_rejected_in_one_sentence(tmp_path: Path) -> None:
    MambaConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1).save_pretrained(tmp_path)

    done = run_here("check-config", "--model", str(tmp_path))

    assert done.code == 2
    assert done.err == "The memory of a model of type 'mamba' is not known before it is loaded.\n"
