"""`antiphon` on a machine whose microphone hears a file, and whose speaker writes one.

`python -m tests.cli.support.spoken_antiphon QUESTION PLAYED talk ...`; both are WAV files, at 16 and 24 kHz.
"""

import sys
import threading
from pathlib import Path

import numpy as np

from antiphon.audio.wav import read_wav, write_wav
from antiphon_command.command import main
from tests.support.fake_sounddevice import Devices, Stream, played, record

BLOCK_S = 0.1
BLOCK = 1600


def hear(stream: Stream, samples: np.ndarray) -> None:
    """Record the file, then silence, at the pace of a device."""
    at = 0
    while not stream.is_closed:
        threading.Event().wait(BLOCK_S)
        if stream.is_running:
            block = np.zeros(BLOCK, np.float32)
            part = samples[at : at + BLOCK]
            block[: len(part)] = part
            at += BLOCK
            record(stream, block)


def play(stream: Stream, path: Path) -> None:
    """Play at the pace of a device, and write down what was played once it is closed."""
    heard = []
    while not stream.is_closed:
        threading.Event().wait(BLOCK_S)
        if stream.is_running:
            heard.append(played(stream, 2400))
    write_wav(path, np.concatenate(heard))


if __name__ == "__main__":
    question, answer, *arguments = sys.argv[1:]
    devices = Devices()
    threads = []

    def begin(target: object, *details: object) -> None:
        threads.append(threading.Thread(target=target, args=details, daemon=True))  # type: ignore[arg-type]
        threads[-1].start()

    devices.on_input = lambda stream: begin(hear, stream, read_wav(question))
    devices.on_output = lambda stream: begin(play, stream, Path(answer))
    sys.modules["sounddevice"] = devices  # type: ignore[assignment]
    code = main(arguments)
    for thread in threads:
        thread.join(60)
    sys.exit(code)
