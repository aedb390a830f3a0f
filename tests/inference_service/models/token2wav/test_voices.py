"""Recordings become voices, through ONNX files that are made here in the published layout."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from inference_service.checkpoints.voices import (
    SPEAKER_ENCODER,
    TOKENIZER,
    VoiceReader,
    load_voices,
    save_voice,
)
from inference_service.models.errors import CheckpointError, VoiceError
from inference_service.models.token2wav import features
from inference_service.models.token2wav.config import Token2WavConfig
from tests.inference_service.models.token2wav import published
from tests.inference_service.models.token2wav.test_features import noise

CONFIG = Token2WavConfig()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    published.write_tokenizer(tmp_path / TOKENIZER)
    published.write_speaker_encoder(tmp_path / SPEAKER_ENCODER)
    return tmp_path


def test_prompt_is_what_the_graphs_say_of_the_spectra(folder: Path) -> None:
    pcm = noise(40_000)
    prompt = VoiceReader(folder, CONFIG).read(pcm)
    mel = features.tokenizer_mel(pcm)
    pooled = mel[:, : mel.shape[1] // 4 * 4].reshape(128, -1, 4).mean(axis=2).max(axis=0)
    assert np.abs(prompt.tokens.numpy() - (pooled + 2) * 1000).max() <= 1
    matrix = torch.randn(80, 192, generator=torch.Generator().manual_seed(5)).numpy()
    power = (features.speaker_fbank(pcm) ** 2).mean(axis=0)
    assert np.allclose(prompt.speaker.numpy(), power @ matrix, rtol=1e-4, atol=1e-4)
    expected = features.prompt_mel(features.resampled(torch.from_numpy(pcm), 16_000, 24_000))
    assert torch.equal(prompt.mel[:124], expected[:124])


def test_prompt_mel_has_two_frames_a_token(folder: Path) -> None:
    """61.9 tokens' worth of sound: the last frame is held, or what is too much is cut."""
    for samples in (39_640, 40_000, 40_500):
        prompt = VoiceReader(folder, CONFIG).read(noise(samples))
        assert len(prompt.tokens) == samples // 160 // 4
        assert prompt.mel.shape == (2 * len(prompt.tokens), 80)


@pytest.mark.parametrize("rate_hz", [22_050, 44_100, 48_000])
def test_recording_of_another_rate(folder: Path, rate_hz: int) -> None:
    reader = VoiceReader(folder, CONFIG)
    seconds = np.arange(2 * rate_hz) / rate_hz
    tone = (0.3 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    same = (0.3 * np.sin(2 * np.pi * 440 * np.arange(32_000) / 16_000)).astype(np.float32)
    prompt, expected = reader.read(tone, rate_hz), reader.read(same)
    assert prompt.tokens.shape == expected.tokens.shape
    middle = slice(10, -10)
    assert float((prompt.mel - expected.mel)[middle, 10:25].abs().max()) < 0.05


def test_only_the_beginning_of_a_long_recording_is_used(folder: Path) -> None:
    reader, pcm = VoiceReader(folder, CONFIG, longest_s=2.0), noise(80_000)
    prompt = reader.read(pcm)
    assert len(prompt.tokens) == 50
    assert torch.equal(prompt.mel, reader.read(pcm[:32_000]).mel)


@pytest.mark.parametrize(
    ("pcm", "rate_hz", "problem"),
    [
        (noise(15_000), 16_000, "1 s or more, not 0.94 s"),
        (noise(16_000), 11_025, "one of the rates 16000, .* it has 11025"),
        (np.zeros(16_000, np.float32), 16_000, "silent"),
        (np.full(16_000, np.nan, np.float32), 16_000, "NaN or infinity"),
    ],
)
def test_useless_recording_is_refused(
    folder: Path, pcm: NDArray[np.float32], rate_hz: int, problem: str
) -> None:
    with pytest.raises(VoiceError, match=problem):
        VoiceReader(folder, CONFIG).read(pcm, rate_hz)


def test_known_recording_is_not_read_again_and_few_are_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = VoiceReader(folder, CONFIG)
    first = reader.read(noise(16_000))
    with monkeypatch.context() as patched:
        patched.setattr(reader, "_prompt", None)
        assert reader.read(noise(16_000)) is first
        with pytest.raises(TypeError):
            reader.read(noise(24_000), 24_000)
    for seed in range(1, 17):
        reader.read(noise(16_000, seed))
    assert len(reader._known) == 16
    assert reader.read(noise(16_000)) is not first


def test_threads_read_at_the_same_time(folder: Path) -> None:
    reader = VoiceReader(folder, CONFIG)
    alone = [VoiceReader(folder, CONFIG).read(noise(16_000, seed)).tokens for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: reader.read(noise(16_000, seed)).tokens, range(4)))
    assert all(torch.equal(one, own) for one, own in zip(together, alone, strict=True))


def test_without_onnxruntime_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(CheckpointError, match=r"pip install 'antiphon\[minicpmo\]'"):
        VoiceReader(folder, CONFIG)


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (
            lambda it: (it / TOKENIZER).write_bytes(b"no graph"),
            f"{TOKENIZER} is no ONNX file that onnxruntime",
        ),
        (lambda it: published.write_speaker_encoder(it / TOKENIZER), "takes 1 inputs and not 2"),
        (
            lambda it: published.write_tokenizer(it / TOKENIZER, bands=80),
            f"{TOKENIZER} does not accept the inputs of its kind",
        ),
        (
            lambda it: published.write_tokenizer(it / TOKENIZER, bias=5000.0),
            f"{TOKENIZER} does not give tokens below 6561",
        ),
        (
            lambda it: published.write_speaker_encoder(it / SPEAKER_ENCODER, width=256),
            f"{SPEAKER_ENCODER} gives 256 numbers and not 192",
        ),
        *(
            (lambda it, name=name: (it / name).unlink(), f"has no {name}")
            for name in (TOKENIZER, SPEAKER_ENCODER)
        ),
    ],
    ids=[
        "damaged",
        "other inputs",
        "other bands",
        "tokens out of range",
        "another width",
        "none",
        "no encoder",
    ],
)
def test_graph_that_does_not_fit_is_named(
    folder: Path, write: Callable[[Path], object], problem: str
) -> None:
    write(folder)
    with pytest.raises(CheckpointError, match=problem):
        VoiceReader(folder, CONFIG).read(noise(16_000))


def test_registered_voices_need_no_onnxruntime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_voices(folder, CONFIG) == {}
    prompt = VoiceReader(folder, CONFIG).read(noise(16_000))
    save_voice(folder, "default", prompt)
    save_voice(folder, "anna", prompt)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    voices = load_voices(folder, CONFIG)
    assert list(voices) == ["anna", "default"]
    assert torch.equal(voices["anna"].tokens, prompt.tokens)
    assert torch.equal(voices["anna"].mel, prompt.mel)
    assert torch.equal(voices["anna"].speaker, prompt.speaker)


@pytest.mark.parametrize("change", ["mel", "speaker", "missing", "damaged", "range"])
def test_voice_that_does_not_fit_is_named(folder: Path, change: str) -> None:
    prompt = VoiceReader(folder, CONFIG).read(noise(16_000))
    tensors = {"tokens": prompt.tokens, "mel": prompt.mel, "speaker": prompt.speaker}
    if change in ("mel", "speaker"):
        tensors[change] = tensors[change][:-1].clone()
    if change == "range":
        tensors["tokens"] = prompt.tokens + 6561
    if change == "missing":
        del tensors["mel"]
    (folder / "voices").mkdir()
    path = folder / "voices/bob.safetensors"
    save_file(tensors, path)
    if change == "damaged":
        path.write_text(json.dumps({}))

    with pytest.raises(CheckpointError, match=r"bob.safetensors is (no voice|a voice of another vocoder)"):
        load_voices(folder, CONFIG)
