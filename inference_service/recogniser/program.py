"""The program of the recogniser's process: sound on standard input, recognised words on standard output.

Its argument is the path of a grammar. It writes a line when it is ready. Each piece of sound follows its
length in four bytes. Each answer is a line of JSON, `null` without words. The program exits at end of input.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from inference_service.recogniser.decoder import Recogniser

NICE = 5
"""`nice` value above that of the worker: ticks come first."""


def main() -> None:
    """Recognise each piece of sound."""
    os.nice(NICE)
    recogniser = Recogniser(Path(sys.argv[1]).read_text())
    source, out = sys.stdin.buffer, sys.stdout
    print("ready", file=out, flush=True)
    while head := source.read(4):
        heard = recogniser.recognise(source.read(int.from_bytes(head, "big")))
        print(json.dumps(asdict(heard) if heard is not None else None), file=out, flush=True)
