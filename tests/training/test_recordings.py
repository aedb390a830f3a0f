"""The recordings of demo and tests: made by the command in their manifest, unknown to training."""

import json
import random
import wave
from pathlib import Path

from antiphon_training.corpus.voices import (
    HELD_OUT_ESPEAK,
    OWN_VOICE,
    TRAINING_ESPEAK,
    TRAINING_FLITE,
    held_out_voice,
    training_voice,
)
from antiphon_training.domains.domain import Split
from antiphon_training.domains.mini import Intent, split_of
from clients.recordings import make

FOLDER = Path(make.__file__).parent
QUESTION = make.QUESTION
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())


def test_manifest_lists_every_recording_and_the_command_that_made_it() -> None:
    assert {entry["file"] for entry in MANIFEST} == {path.name for path in FOLDER.glob("*.wav")}
    assert len(MANIFEST) == len(Intent)
    assert {entry["command"] for entry in MANIFEST} == {make.COMMAND}
    assert f"`{make.COMMAND}`" in (make.__doc__ or "")


def test_no_recorded_sentence_and_no_recorded_voice_is_in_the_training_data() -> None:
    assert {split_of(entry["text"]) for entry in MANIFEST} == {Split.HELD_OUT}
    names = {entry["voice"].split()[-1].split("+")[-1] for entry in MANIFEST}
    assert names <= {*HELD_OUT_ESPEAK, OWN_VOICE}
    assert not names & {*TRAINING_ESPEAK, *TRAINING_FLITE}


def test_training_voices_and_held_out_voices_never_meet() -> None:
    rng = random.Random(0)
    trained = {training_voice(rng).name.split("+")[-1] for _ in range(2000)}
    measured = {held_out_voice(rng).name.split("+")[-1] for _ in range(500)} | {OWN_VOICE}
    assert not trained & measured


def test_recordings_are_16_khz_mono_16_bit() -> None:
    for entry in MANIFEST:
        with wave.open(str(FOLDER / entry["file"])) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)


def test_one_recording_is_the_demo_and_comes_with_the_command() -> None:
    (demo,) = (entry for entry in MANIFEST if entry["demo"])
    assert json.loads((QUESTION / "manifest.json").read_text()) == [demo]
    assert (QUESTION / demo["file"]).read_bytes() == (FOLDER / demo["file"]).read_bytes()
    assert {path.name for path in QUESTION.iterdir()} == {"manifest.json", demo["file"]}
