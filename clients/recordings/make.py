"""Makes the recordings and their manifest: `python -m clients.recordings.make`.

One question of each intent, in voices and sentences that training never uses. espeak-ng and flite
are run as programs (`apt-get install espeak-ng flite`).
"""

import json
import random
import shutil
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon_command.commands import demo
from antiphon_training.corpus.voices import (
    SAMPLE_RATE,
    Voice,
    flite_voice,
    held_out_voice,
)
from antiphon_training.domains.domain import Split
from antiphon_training.domains.mini import Intent, draw

FOLDER = Path(__file__).parent
QUESTION = Path(demo.__file__).parents[1] / "question"
"""The folder of the question that `antiphon demo` asks, which is part of the package."""
SEED = 20_261_120
COMMAND = "python -m clients.recordings.make"
_LEAD_S = 1.0
_TAIL_S = 0.5
_NOISE = 0.0005
_DEMO = Intent.ABILITIES


def write_wav(path: Path, pcm: NDArray[np.float32]) -> None:
    """16 kHz, mono, 16 bit."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((pcm.clip(-1, 1) * 32767).astype("<i2").tobytes())


def record(rng: random.Random, voice: Voice, text: str) -> NDArray[np.float32]:
    """The sentence between a second of near silence and half a second of it."""
    pcm = np.concatenate(
        [
            np.zeros(round(_LEAD_S * SAMPLE_RATE), np.float32),
            voice.say(text),
            np.zeros(round(_TAIL_S * SAMPLE_RATE), np.float32),
        ]
    )
    noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(len(pcm))
    return np.asarray(pcm + noise * _NOISE, dtype=np.float32)


def main() -> None:
    """Writes every recording and `manifest.json`."""
    rng = random.Random(SEED)
    entries: list[dict[str, object]] = []
    for i, intent in enumerate(Intent):
        exchange = draw(rng, Split.HELD_OUT, intent)
        voice = flite_voice(rng, "slt") if i % 2 == 0 else held_out_voice(rng)
        file = f"{intent}.wav"
        write_wav(FOLDER / file, record(rng, voice, exchange.question))
        entry = {
            "file": file,
            "text": exchange.question,
            "expected_reply": exchange.reply,
            "voice": f"{voice.program} {voice.name}",
            "command": COMMAND,
            "demo": intent is _DEMO,
        }
        entries.append(entry)
    _write_manifest(FOLDER, entries)
    (asked,) = (entry for entry in entries if entry["demo"])
    shutil.copy(FOLDER / str(asked["file"]), QUESTION)
    _write_manifest(QUESTION, [asked])


def _write_manifest(folder: Path, entries: list[dict[str, object]]) -> None:
    (folder / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
