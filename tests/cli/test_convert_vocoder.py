"""Tests of `antiphon convert-vocoder` with the recorded vocoder in the published layout."""

from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.wav import write_wav
from tests.cli.support.process import run_cli, run_here, run_without
from tests.inference_service.models.token2wav import published
from tests.inference_service.models.token2wav.test_features import noise


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return published.write(tmp_path / "assets/token2wav")


def voices(target: Path) -> list[str]:
    return sorted(path.stem for path in (target / "voices").glob("*"))


def test_published_voice_becomes_the_default_one(source: Path, tmp_path: Path) -> None:
    write_wav(source.parent / "HT_ref_audio.wav", noise(48_000), 24_000)

    done = run_cli("convert-vocoder", source, tmp_path / "vocoder")

    assert (done.code, done.err) == (0, "")
    assert done.out == f"{tmp_path / 'vocoder'}: 2 blocks and HiFT. Voices: default.\n"
    assert voices(tmp_path / "vocoder") == ["default"]


def test_given_voices_replace_the_published_one(source: Path, tmp_path: Path) -> None:
    write_wav(source.parent / "HT_ref_audio.wav", noise(1000), 24_000)  # not looked at
    for name in ("me", "anna"):
        write_wav(tmp_path / f"{name}.wav", noise(32_000), 16_000)

    options = ("--voice", tmp_path / "me.wav", "--voice", f"anna={tmp_path / 'anna.wav'}")
    done = run_here("convert-vocoder", source, tmp_path / "vocoder", *options)

    assert done.code == 0
    assert voices(tmp_path / "vocoder") == ["anna", "default"]


def test_missing_default_voice_is_reported(tmp_path: Path) -> None:
    source = published.write(tmp_path / "token2wav", is_causal=True)

    done = run_here("convert-vocoder", source, tmp_path / "vocoder")

    assert done.code == 0
    assert done.out == (
        f"{tmp_path / 'vocoder'}: 2 blocks and causal HiFT. Voices: none.\n"
        "It has no default voice: sessions must bring a recording. Give one with --voice WAV.\n"
    )


def test_unusable_folder_or_voice_is_refused(source: Path, tmp_path: Path) -> None:
    done = run_here("convert-vocoder", tmp_path / "nothing", tmp_path / "vocoder")
    assert done.code == 2
    assert done.err == f"{tmp_path / 'nothing'} is no folder. Give the one with flow.pt in it.\n"
    write_wav(tmp_path / "silence.wav", np.zeros(32_000, np.float32), 16_000)
    (tmp_path / "text.wav").write_text("hello")

    for name, problem in (("silence", "is silent"), ("text", "is no WAV file"), ("none", "does not exist")):
        path = tmp_path / f"{name}.wav"
        done = run_here("convert-vocoder", source, tmp_path / "vocoder", "--voice", path)

        assert done.code == 2
        assert problem in done.err
        assert not (tmp_path / "vocoder").exists()


@pytest.mark.long
def test_voice_without_onnxruntime_names_the_extra(source: Path, tmp_path: Path) -> None:
    write_wav(tmp_path / "me.wav", noise(32_000), 16_000)

    words = [str(word) for word in (source, tmp_path / "vocoder", "--voice", tmp_path / "me.wav")]
    done = run_without("onnxruntime", "convert-vocoder", *words)

    assert done.code == 2
    assert "pip install 'antiphon[minicpmo]'" in done.err
