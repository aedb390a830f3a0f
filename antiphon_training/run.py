"""The whole recipe of a model, from its domain to a checkpoint: `antiphon train`.

Each stage writes one file into the work folder. A stage whose file exists is skipped; an interrupted stage
resumes from its last save. Needs flite and espeak-ng (`apt-get install flite espeak-ng`).
"""

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from antiphon_training.corpus import answers, pictures, vocabulary
from antiphon_training.corpus import spoken as corpus
from antiphon_training.domains.domain import Domain
from antiphon_training.stages import (
    alignment,
    codec,
    ear,
    export,
    eye,
    joint,
    rounds,
    speech,
)

QUESTIONS: Final = 2_500
"""The number of spoken questions about pictures, which have a corpus of their own."""
PICTURES: Final = 20_000
"""The number of training pictures."""
PROGRAMS: Final = ("espeak-ng", "flite")
"""The speech synthesisers that must be installed."""
_DOMAIN: Final = "domain.txt"

Make = Callable[[Path, bool], None]
"""A function that makes a stage's file; the flag says whether an interrupted run left a part of it."""


class WorkFolderError(Exception):
    """The error for a work folder that cannot be used for this training."""


@dataclass(frozen=True)
class Budget:
    """The wall time of each trained stage in seconds, on one core.

    The defaults are shares, which `of` scales to the time of a domain.
    """

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

    @classmethod
    def of(cls, domain: Domain, scale: float = 1.0) -> "Budget":
        """Return the budget whose stages take `scale` times the domain's minutes in all.

        For a domain without a vision encoder, the time of its stages goes to the others.
        """
        shares = cls() if domain.looking else cls(eye=0, looking=0, seeing=0)
        factor = domain.minutes * 60 * scale / sum(asdict(shares).values())
        return replace(shares, **{stage: share * factor for stage, share in asdict(shares).items()})


@dataclass(frozen=True)
class Recipe:
    """The stages of a domain's training in order, with their files in one work folder."""

    domain: Domain
    work: Path
    budget: Budget
    utterances: int
    processes: int

    @property
    def batch(self) -> int:
        """The number of spoken sessions in a training step; fewer for a small corpus."""
        return max(2, min(12, self.utterances // 20))

    def file(self, name: str) -> Path:
        """Return the path of a file in the work folder."""
        return self.work / name

    def run(self, out: Path) -> None:
        """Run every stage, and write the checkpoint to `out` at the end.

        Raises WorkFolderError if the work folder is of another domain, or another process is training there.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._check_domain()
            stages = self._stages()
            for number, (name, make) in enumerate(stages, 1):
                self._run(f"[{number}/{len(stages)}] {name}", self.file(name), make)
            files = (
                self.file("turns.pt"),
                self.file("speech.pt"),
                self.file("codec.pt"),
                self.file("tokenizer"),
            )
            export.export(self.domain, *files, out)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the work folder for this process."""
        with open(self.file("lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WorkFolderError(
                    f"Another process is training in {self.work}. Wait until it ends, or name another folder "
                    "with --work."
                ) from None
            yield

    def _check_domain(self) -> None:
        """Store the domain's fingerprint in the work folder, or compare it with the stored one."""
        mark, fingerprint = self.file(_DOMAIN), self.domain.fingerprint()
        if not mark.exists():
            mark.write_text(fingerprint)
        elif mark.read_text() != fingerprint:
            raise WorkFolderError(
                f"{self.work} holds files of another domain, or of another version of this one. "
                "Remove the folder, or name another with --work."
            )

    def _run(self, title: str, out: Path, make: Make) -> None:
        """Run a stage unless its file exists; the file appears only when complete."""
        if out.exists():
            print(f"{title}: exists already", flush=True)
            return
        print(title, flush=True)
        part = out.with_name("part-" + out.name)
        begin = time.monotonic()
        make(part, part.exists())
        part.rename(out)
        print(f"{title}: {time.monotonic() - begin:.0f} s", flush=True)

    def _stages(self) -> list[tuple[str, Make]]:
        """Return the file of each stage, and the function that makes it."""
        domain = self.domain
        hearing: list[tuple[str, Make]] = [
            ("tokenizer", lambda part, _: vocabulary.build(domain, part)),
            ("corpus.npz", lambda part, _: corpus.build(domain, part, self.utterances, self.processes)),
            ("ear.pt", self._hear),
            ("joint.pt", self._joint),
            ("refined.pt", self._refine),
            ("sharpened.pt", self._sharpen),
        ]
        seeing: list[tuple[str, Make]] = [
            ("questions.npz", self._questions),
            ("pictures.npz", lambda part, _: pictures.build(part, PICTURES, self.processes)),
            ("eye.pt", lambda part, _: eye.train(self.file("pictures.npz"), part, self.budget.eye)),
            ("looking.pt", self._look),
            ("seeing.pt", self._see),
        ]
        speaking: list[tuple[str, Make]] = [
            ("word_ends.npz", self._word_ends),
            ("turns.pt", self._take_turns),
            ("replies.npz", lambda part, _: answers.build(domain, part)),
            ("codec.pt", lambda part, _: codec.make(domain, self.file("replies.npz"), part)),
            ("speech.pt", self._speech),
        ]
        return [*hearing, *(seeing if domain.looking else ()), *speaking]

    def _vision_file(self, name: str) -> Path | None:
        """Return the path of a file in the work folder; None for a model without a vision encoder."""
        return self.file(name) if self.domain.looking else None

    def _hear(self, part: Path, resume: bool) -> None:
        ear.train(self.file("corpus.npz"), part, self.budget.ear, resume, batch=8 * self.batch)

    def _joint(self, part: Path, resume: bool) -> None:
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(self.domain, *files, part, self.budget.joint, resume, batch=self.batch)

    def _refine(self, part: Path, resume: bool) -> None:
        """Train a second round at half the learning rate; the audio encoder is never frozen."""
        if not resume:
            rounds.copy(self.file("joint.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            self.domain, *files, part, self.budget.refine, True, frozen_share=0.0, peak=1e-3,
            batch=self.batch, seed=3,
        )  # fmt: skip

    def _sharpen(self, part: Path, resume: bool) -> None:
        """Train a round without label smoothing.

        Wrong tokens must stay unlikely under the length and repetition penalties of decoding.
        """
        if not resume:
            rounds.copy(self.file("refined.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            self.domain, *files, part, self.budget.sharpen, True, frozen_share=0.0, peak=5e-4,
            batch=self.batch, seed=4, smoothing=0.0,
        )  # fmt: skip

    def _questions(self, part: Path, _: bool) -> None:
        corpus.build(self.domain, part, QUESTIONS, self.processes, corpus.VISION_SEED, self.domain.looking)

    def _look(self, part: Path, resume: bool) -> None:
        """Train on short sequences, mostly about pictures, with the audio encoder frozen."""
        if not resume:
            heard = torch.load(self.file("sharpened.pt"), weights_only=True)
            rounds.save(heard | torch.load(self.file("eye.pt"), weights_only=True), part)
        files = self.file("questions.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            self.domain, *files, part, self.budget.looking, True, frozen_share=1.0, peak=1e-3, batch=4,
            seed=5, smoothing=0.0, pictures=self.file("pictures.npz"), lesson=joint.LOOKING_LESSON,
        )  # fmt: skip

    def _see(self, part: Path, resume: bool) -> None:
        """Train on sessions of all intents, some with a camera; the audio encoder stays frozen."""
        if not resume:
            rounds.copy(self.file("looking.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            self.domain, *files, part, self.budget.seeing, True, frozen_share=1.0, peak=5e-4,
            batch=self.batch, seed=6, smoothing=0.0, lesson=joint.SEEING_LESSON,
            questions=self._vision_file("questions.npz"), pictures=self._vision_file("pictures.npz"),
        )  # fmt: skip

    def _word_ends(self, part: Path, _: bool) -> None:
        spoken = [file for file in (self.file("corpus.npz"), self._vision_file("questions.npz")) if file]
        alignment.build(spoken, self.file("ear.pt"), part, self.budget.word_ends)

    def _take_turns(self, part: Path, resume: bool) -> None:
        """Train on chats and transcriptions in addition to sessions, with both encoders frozen."""
        if not resume:
            rounds.copy(self.file("seeing.pt" if self.domain.looking else "sharpened.pt"), part)
        files = self.file("corpus.npz"), self.file("tokenizer"), self.file("ear.pt")
        joint.train(
            self.domain, *files, part, self.budget.turns, True, frozen_share=1.0, peak=5e-4,
            batch=self.batch, seed=11, smoothing=0.0, word_ends=self.file("word_ends.npz"),
            lesson=joint.TURNS_LESSON, eye_learns=False,
            questions=self._vision_file("questions.npz"), pictures=self._vision_file("pictures.npz"),
        )  # fmt: skip

    def _speech(self, part: Path, resume: bool) -> None:
        files = self.file("replies.npz"), self.file("codec.pt"), self.file("tokenizer")
        speech.train(self.domain, *files, self.file("turns.pt"), part, self.budget.speech, resume)


def missing_programs() -> list[str]:
    """Return the speech synthesisers that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program) is None]
