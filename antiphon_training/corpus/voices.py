"""The synthetic voices of training and evaluation: espeak-ng and flite, run as programs.

Training uses no voice of `HELD_OUT_ESPEAK`, and not flite's `slt`, with which `antiphon-mini` speaks.
"""

import io
import random
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

SAMPLE_RATE = 16_000

ACCENTS = (
    "en-us",
    "en-gb",
    "en-gb-x-rp",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)
TRAINING_ESPEAK = (
    "", "f1", "f2", "f4", "m1", "m2", "m3", "m5", "m7", "m8", "adam", "Alex", "Alicia", "Andrea", "Andy",
    "belinda", "benjamin", "david", "Denis", "Diogo", "edward", "Gene", "Henrique", "Hugo", "iven", "iven3",
    "Jacky", "john", "linda", "marcelo", "Marco", "Mario", "max", "miguel", "Nguyen", "pablo", "pedro", "rob",
    "shelby", "steph", "steph3", "zac", "anika", "klatt", "klatt3", "grandma", "victor", "norbert", "caleb",
    "ed", "paul", "sandro",
)  # fmt: skip
HELD_OUT_ESPEAK = (
    "f3",
    "f5",
    "m4",
    "m6",
    "Annie",
    "robert",
    "steph2",
    "iven2",
    "travis",
    "klatt2",
    "Lee",
    "michel",
)
TRAINING_FLITE = ("awb", "rms", "kal16")
OWN_VOICE = "slt"
_FLITE_PITCH_HZ = {"slt": 180, "awb": 125, "rms": 100, "kal16": 105}


@dataclass(frozen=True)
class Voice:
    """A synthetic voice: the program, the name of the voice, and speed and pitch in the program's units."""

    program: str
    name: str
    speed: float
    pitch: float

    def say(self, text: str) -> NDArray[np.float32]:
        """Return mono float32 speech at 16 kHz without leading and trailing silence, peak 0.6."""
        return _trimmed(*(self._espeak(text) if self.program == "espeak-ng" else self._flite(text)))

    def _espeak(self, text: str) -> tuple[NDArray[np.float32], int]:
        command = [
            "espeak-ng",
            "-v",
            self.name,
            "-s",
            f"{self.speed:.0f}",
            "-p",
            f"{self.pitch:.0f}",
            "--stdout",
            text,
        ]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        # espeak-ng writes its WAV as a stream, so the sizes in the header are wrong.
        with wave.open(io.BytesIO(run.stdout)) as header:
            rate = header.getframerate()
        return _samples(run.stdout[44:]), rate

    def _flite(self, text: str) -> tuple[NDArray[np.float32], int]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "speech.wav"
            command = ["flite", "-voice", self.name, "--setf", f"duration_stretch={self.speed:.3f}"]
            command += ["--setf", f"int_f0_target_mean={self.pitch:.1f}", "-t", text, "-o", str(path)]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            return read_wav(path)


def read_wav(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return float32 samples in [-1, 1] and the rate of a mono 16-bit WAV file."""
    with wave.open(str(path)) as file:
        return _samples(file.readframes(file.getnframes())), file.getframerate()


def _samples(pcm: bytes) -> NDArray[np.float32]:
    """Return float32 samples in [-1, 1] from little-endian 16-bit ones."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)


def training_voice(rng: random.Random) -> Voice:
    """Return a random training voice: 72 % are espeak-ng variants, 28 % are voices of flite."""
    if rng.random() < 0.28:
        return flite_voice(rng, rng.choice(TRAINING_FLITE))
    variant = rng.choice(TRAINING_ESPEAK)
    name = rng.choice(ACCENTS[:7]) + (f"+{variant}" if variant else "")
    return Voice("espeak-ng", name, rng.randint(110, 210), rng.randint(20, 80))


def held_out_voice(rng: random.Random) -> Voice:
    """Return a random voice that training does not use."""
    name = f"{rng.choice(ACCENTS)}+{rng.choice(HELD_OUT_ESPEAK)}"
    return Voice("espeak-ng", name, rng.randint(120, 200), rng.randint(30, 70))


def flite_voice(rng: random.Random, name: str) -> Voice:
    """Return a flite voice with random tempo and pitch."""
    return Voice("flite", name, rng.uniform(0.8, 1.25), _FLITE_PITCH_HZ[name] * rng.uniform(0.85, 1.2))


def without_silence(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return speech, float32 at 16 kHz, without the silence before and after it."""
    envelope = np.convolve(np.abs(speech), np.ones(160, np.float32) / 160, "same")
    loud = np.where(envelope > 0.01 * envelope.max() + 1e-4)[0]
    return speech[max(0, loud[0] - 160) : loud[-1] + 160]


def _trimmed(speech: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    if rate != SAMPLE_RATE:
        common = gcd(SAMPLE_RATE, rate)
        speech = resample_poly(speech, SAMPLE_RATE // common, rate // common).astype(np.float32)
    speech = without_silence(speech)
    return np.asarray(speech / max(1e-6, float(np.abs(speech).max())) * 0.6, dtype=np.float32)
