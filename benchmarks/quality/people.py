"""Questions in a person's voice: Debian's package asterisk-core-sounds-en-g722, one woman, 16 kHz.

The recordings are words and numbers; some questions join several. Training does not use them, and they are
not shipped.
"""

import random
from functools import cache
from pathlib import Path
from typing import Final

import av
import numpy as np
from numpy.typing import NDArray

from antiphon_training.corpus.voices import SAMPLE_RATE, without_silence
from antiphon_training.domains.domain import ONES, Exchange, spell
from antiphon_training.domains.mini import Intent, arithmetic

PACKAGE: Final = "asterisk-core-sounds-en-g722"
FOLDER: Final = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
INTENTS: Final = (Intent.GREETING, Intent.ARITHMETIC, Intent.DIGITS, Intent.THANKS, Intent.GOODBYE)
"""The intents for which there are recordings."""
_GAP_S: Final = (0.02, 0.15)
"""The range of the pause between joined words, in seconds."""
_FIXED: Final = {
    Intent.GREETING: (("hello",), Exchange(Intent.GREETING, "hello", "hello how can i help you")),
    Intent.THANKS: (("auth-thankyou",), Exchange(Intent.THANKS, "thank you", "you are welcome")),
    Intent.GOODBYE: (("goodbye", "vm-goodbye"), Exchange(Intent.GOODBYE, "goodbye", "goodbye")),
}

Sound = NDArray[np.float32]


def is_installed() -> bool:
    """Return whether the recordings are installed."""
    return FOLDER.is_dir()


def question(rng: random.Random, intent: Intent) -> tuple[Exchange, Sound]:
    """Draw a question and its sound: mono float32 at 16 kHz without silence around it, peak 0.6."""
    if intent in _FIXED:
        names, exchange = _FIXED[intent]
        return exchange, _joined(rng, [rng.choice(names)])
    if intent is Intent.ARITHMETIC:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        names = (f"digits/{a}", "digits/minus", f"digits/{b}")
        return arithmetic("", a, "minus", b), _joined(rng, names)
    if rng.random() < 0.4:
        number = rng.randint(0, 20)
        said, names = spell(number), (f"digits/{number}",)
    else:
        digits = [rng.randint(0, 9) for _ in range(rng.randint(2, 4))]
        said, names = " ".join(ONES[digit] for digit in digits), tuple(f"digits/{digit}" for digit in digits)
    return Exchange(Intent.DIGITS, said, said), _joined(rng, names)


def _joined(rng: random.Random, names: list[str] | tuple[str, ...]) -> Sound:
    parts: list[Sound] = []
    for name in names:
        parts += [_recording(name), np.zeros(round(rng.uniform(*_GAP_S) * SAMPLE_RATE), np.float32)]
    sound = np.concatenate(parts[:-1])
    return np.asarray(sound / np.abs(sound).max() * 0.6, dtype=np.float32)


@cache
def _recording(name: str) -> Sound:
    """Return a recording without the silence around it."""
    with av.open(str(FOLDER / f"{name}.g722"), format="g722") as container:
        sound = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    return without_silence(sound.astype(np.float32) / 32768)
