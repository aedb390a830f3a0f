"""Spoken replies in the model's own voice, cut into units of one second."""

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from antiphon_training.corpus.acoustics import analyse, resample_frames, silence
from antiphon_training.corpus.recipe import VOCODER
from antiphon_training.corpus.voices import SAMPLE_RATE, read_wav
from antiphon_training.domains.domain import Domain
from inference_service.models.pacing import chunks

UNIT_FRAMES = 100
_LEAD = 3
"""Additional frames before the first word that the first unit keeps."""
_SLOWEST = 1.4
"""The largest factor by which a chunk is stretched to fill its unit."""
_LAST_SLOWER = 1.15
"""The factor by which the last chunk is stretched."""
_CLOSING = 8
"""Frames that the last unit keeps behind the last word."""


@dataclass(frozen=True)
class SpokenReply:
    """The words and acoustic frames [frames, bands + 2] of each unit; all but the last have 100 frames."""

    words: list[list[str]]
    frames: list[NDArray[np.float32]]

    @property
    def text(self) -> str:
        """The whole reply."""
        return " ".join(word for chunk in self.words for word in chunk)


@cache
def _phones(voice: str, word: str) -> int:
    return sum(phone != "pau" for phone in _flite(voice, word, "-ps").split())


def _flite(voice: str, text: str, show: str, out: str = "none") -> str:
    command = ["flite", "-voice", voice, show, "-t", text, "-o", out]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def word_ends(voice: str, reply: str, segments: str) -> list[float]:
    """Return the end of each word in seconds, from flite's list of phones with their end times.

    A word alone may have another number of phones than in the sentence; its end is then scaled in proportion.
    """
    ends = [float(end) for name, end in (item.split(":") for item in segments.split()) if name != "pau"]
    last = np.cumsum([_phones(voice, word) for word in reply.split()])
    return [ends[max(1, round(i * len(ends) / last[-1])) - 1] for i in last]


def speak(voice: str, reply: str, wav: Path) -> SpokenReply:
    """Synthesise a reply and fit each chunk of words into its unit; `wav` is a scratch file."""
    ends = word_ends(voice, reply, _flite(voice, reply, "-psdur", str(wav)))
    pcm, rate = read_wav(wav)
    assert rate == SAMPLE_RATE
    frames = analyse(pcm, VOCODER.bands)
    words = chunks(reply)
    borders = [round(ends[sum(map(len, words[: i + 1])) - 1] * 100) for i in range(len(words))]
    first = next(i for i, frame in enumerate(frames) if frame[VOCODER.bands + 1] > 0)
    begin = max(0, first - 12)
    units = []
    for i, end in enumerate(borders):
        last = i == len(borders) - 1
        part = frames[
            max(0, begin - _LEAD) if i == 0 else begin : min(len(frames), end + (_CLOSING if last else 0))
        ]
        begin = end
        units.append(_fit(part, last))
    return SpokenReply(words, units)


def _fit(part: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
    """Stretch or squeeze a chunk to one unit; the last one of a reply may stay shorter."""
    if last:
        length = min(UNIT_FRAMES, round(len(part) * _LAST_SLOWER))
        target = -(-length // VOCODER.frames_per_code) * VOCODER.frames_per_code
    else:
        length, target = min(UNIT_FRAMES, round(len(part) * _SLOWEST)), UNIT_FRAMES
    fitted = resample_frames(part, length)
    return np.concatenate([fitted, silence(target - length, VOCODER.bands, float(fitted[-1, VOCODER.bands]))])


def build(domain: Domain, out: Path) -> None:
    """Synthesise the spoken replies of a domain into `out` (.npz)."""
    out.parent.mkdir(parents=True, exist_ok=True)
    wav = out.with_suffix(".wav")
    texts, lengths, frames = [], [], []
    for reply in tqdm(domain.replies(), desc="replies", disable=None):
        spoken = speak(domain.voice, reply, wav)
        texts.append(reply)
        lengths += [len(unit) for unit in spoken.frames]
        frames += spoken.frames
    wav.unlink()
    np.savez(out, text=np.array(texts), length=np.array(lengths), frames=np.concatenate(frames))


def load(path: Path) -> list[SpokenReply]:
    """Return the spoken replies made by `build`."""
    data = np.load(path)
    ends = np.cumsum(data["length"])
    frames = data["frames"]
    units = [frames[end - length : end] for length, end in zip(data["length"], ends, strict=True)]
    result, at = [], 0
    for text in data["text"]:
        words = chunks(str(text))
        result.append(SpokenReply(words, units[at : at + len(words)]))
        at += len(words)
    return result
