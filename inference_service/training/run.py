"""The whole recipe of `antiphon-mini`: `make train`.

Each stage leaves one file in the work folder; a stage whose file is there is skipped, a stage that was
cut off goes on from its last save. Needs flite and espeak-ng (`apt-get install flite espeak-ng`).
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from inference_service.training import alignment, codec, ear, export, eye, joint, speech
from inference_service.training.corpus import answers, pictures, vocabulary
from inference_service.training.corpus import spoken as corpus
from inference_service.training.corpus.domain import Intent

UTTERANCES = 26_000
QUESTIONS = 2_500
"""Spoken questions about pictures, in a corpus of their own."""
PICTURES = 20_000


@dataclass(frozen=True)
class Budget:
    """Wall time of each trained stage in seconds, on one core."""

    ear: float = 1_020
    joint: float = 3_300
    refine: float = 1_800
    sharpen: float = 780
    eye: float = 480
    looking: float = 900
    seeing: float = 2_600
    word_ends: float = 30
    turns: float = 5_000
    speech: float = 2_200

    def scaled(self, factor: float) -> "Budget":
        """Return the same shares of another total."""
        return Budget(**{stage: seconds * factor for stage, seconds in asdict(self).items()})


class Recipe:
    """The stages in order, over one work folder."""

    def __init__(self, work: Path, budget: Budget, utterances: int, processes: int) -> None:
        self.work = work
        self.budget = budget
        self.utterances = utterances
        self.processes = processes

    def file(self, name: str) -> Path:
        """Return a file of the work folder."""
        return self.work / name

    def stage(self, name: str, make: Callable[[Path, bool], None]) -> None:
        """Run `make(part, resume)` unless the stage's file exists; the file appears only when complete."""
        out = self.file(name)
        if out.exists():
            print(f"{name}: there already", flush=True)
            return
        part = out.with_name("part-" + out.name)
        begin = time.monotonic()
        make(part, part.exists())
        part.rename(out)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)

    def run(self, out: Path) -> None:
        """Run every stage, and write the checkpoint to `out` at the end."""
        tokenizer = self.file("tokenizer")
        spoken, replies, voice = self.file("corpus.npz"), self.file("replies.npz"), self.file("codec.pt")
        self.stage("tokenizer", lambda part, _: vocabulary.build(part))
        self.stage("corpus.npz", lambda part, _: corpus.build(part, self.utterances, self.processes))
        self.stage("ear.pt", lambda part, resume: ear.train(spoken, part, self.budget.ear, resume))
        self.stage("joint.pt", self._joint)
        self.stage("refined.pt", self._refine)
        self.stage("sharpened.pt", self._sharpen)
        self.stage("questions.npz", self._questions)
        self.stage("pictures.npz", lambda part, _: pictures.build(part, PICTURES, self.processes))
        self.stage("eye.pt", lambda part, _: eye.train(self.file("pictures.npz"), part, self.budget.eye))
        self.stage("looking.pt", self._look)
        self.stage("seeing.pt", self._see)
        self.stage("word_ends.npz", self._word_ends)
        self.stage("turns.pt", self._take_turns)
        self.stage("replies.npz", lambda part, _: answers.build(part))
        self.stage("codec.pt", lambda part, _: codec.make(replies, part))
        self.stage("speech.pt", self._speech)
        export.export(self.file("turns.pt"), self.file("speech.pt"), voice, tokenizer, out)

    def _joint(self, part: Path, resume: bool) -> None:
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(*files, part, self.budget.joint, resume)

    def _refine(self, part: Path, resume: bool) -> None:
        """Train a second, gentler round in which the ear learns from the start."""
        if not resume:
            shutil.copy(self.file("joint.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(*files, part, self.budget.refine, True, frozen_share=0.0, peak=1e-3, seed=3)

    def _sharpen(self, part: Path, resume: bool) -> None:
        """Train a last round without label smoothing: wrong tokens must stay unlikely under the penalties."""
        if not resume:
            shutil.copy(self.file("refined.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            *files, part, self.budget.sharpen, True, frozen_share=0.0, peak=5e-4, seed=4, smoothing=0.0
        )

    def _questions(self, part: Path, _: bool) -> None:
        corpus.build(part, QUESTIONS, self.processes, corpus.VISION_SEED, Intent.VISION)

    def _look(self, part: Path, resume: bool) -> None:
        """Teach the language model to look: short sequences, mostly about pictures; the ear stands still."""
        if not resume:
            heard = torch.load(self.file("sharpened.pt"), weights_only=True)
            torch.save(heard | torch.load(self.file("eye.pt"), weights_only=True), part)
        files = self.file("questions.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            *files, part, self.budget.looking, True, frozen_share=1.0, peak=1e-3, batch=4, seed=5,
            smoothing=0.0, pictures=self.file("pictures.npz"), lesson=joint.LOOKING_LESSON,
        )  # fmt: skip

    def _see(self, part: Path, resume: bool) -> None:
        """Train sessions of all intents, some with a camera; the ear still stands still."""
        if not resume:
            shutil.copy(self.file("looking.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            *files, part, self.budget.seeing, True, frozen_share=1.0, peak=5e-4, seed=6, smoothing=0.0,
            questions=self.file("questions.npz"), pictures=self.file("pictures.npz"),
            lesson=joint.SEEING_LESSON,
        )  # fmt: skip

    def _word_ends(self, part: Path, _: bool) -> None:
        spoken = [self.file("corpus.npz"), self.file("questions.npz")]
        alignment.build(spoken, self.file("ear.pt"), part, self.budget.word_ends)

    def _take_turns(self, part: Path, resume: bool) -> None:
        """Train chats and transcriptions beside sessions of all kinds; ear and eye stand still."""
        if not resume:
            shutil.copy(self.file("seeing.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            *files, part, self.budget.turns, True, frozen_share=1.0, peak=5e-4, seed=11, smoothing=0.0,
            questions=self.file("questions.npz"), pictures=self.file("pictures.npz"),
            word_ends=self.file("word_ends.npz"), lesson=joint.TURNS_LESSON, eye_learns=False,
        )  # fmt: skip

    def _speech(self, part: Path, resume: bool) -> None:
        files = self.file("replies.npz"), self.file("codec.pt"), self.file("tokenizer")
        speech.train(*files, self.file("turns.pt"), part, self.budget.speech, resume)


def main() -> int:
    """Run the recipe from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, default=Path("var/training"), help="folder of intermediate files"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("var/antiphon-mini"), help="folder of the checkpoint"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the standard training time")
    parser.add_argument("--utterances", type=int, default=UTTERANCES)
    parser.add_argument("--processes", type=int, default=2, help="for synthesis; training uses one core")
    arguments = parser.parse_args()
    missing = [program for program in ("espeak-ng", "flite") if shutil.which(program) is None]
    if missing:
        print(
            f"Training speech is made with {' and '.join(missing)}, not found here. "
            "On Debian and Ubuntu: apt-get install espeak-ng flite",
            file=sys.stderr,
        )
        return 2
    arguments.work.mkdir(parents=True, exist_ok=True)
    budget = Budget().scaled(arguments.scale)
    Recipe(arguments.work, budget, arguments.utterances, arguments.processes).run(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
