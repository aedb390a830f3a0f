"""An independent recogniser of the model's voice: pocketsphinx with a grammar of every reply."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from antiphon_training.domains.domain import ONES
from antiphon_training.domains.mini import all_replies


def grammar() -> str:
    """Return a JSGF grammar of every reply of the domain, spelled out or as a rule."""
    numbers = (
        "<ones> = " + " | ".join(ONES[1:10]) + ";\n"
        "<digit> = zero | <ones>;\n"
        "<teens> = " + " | ".join(ONES[10:]) + ";\n"
        "<tens> = (twenty | thirty | forty | fifty | sixty | seventy | eighty | ninety) [<ones>];\n"
        "<below> = <ones> | <teens> | <tens>;\n"
        "<number> = zero | <below> | minus <below> | <ones> hundred [<below>];\n"
        "<small> = <digit> | <teens> | twenty;\n"
    )
    fixed = [
        reply for reply in all_replies() if " is " not in f" {reply} " or "light" in reply or "name" in reply
    ]
    return (
        "#JSGF V1.0;\ngrammar replies;\n"
        + numbers
        + "<sum> = <small> (plus | minus | times) <small> is <number>;\n"
        + "<digits> = <digit> <digit> [<digit>] [<digit>];\n"
        + "public <reply> = <sum> | <digits> | "
        + " | ".join(f"({reply})" for reply in fixed)
        + ";\n"
    )


class Listener:
    """A recogniser that transcribes 24 kHz speech."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=16000, lm=None, loglevel="FATAL")
        self._decoder.add_jsgf_string("replies", grammar())
        self._decoder.activate_search("replies")

    def hear(self, speech: NDArray[np.float32]) -> str:
        """Return the words of one reply, float32 speech at 24 kHz; empty if no reply of the grammar fits."""
        sound = np.concatenate([np.zeros(3200), resample_poly(speech, 2, 3), np.zeros(4800)])
        sound = sound + np.random.default_rng(0).normal(0, 20 / 32768, len(sound))
        self._decoder.start_utt()
        self._decoder.process_raw((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes(), False, True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return heard.hypstr if heard else ""
