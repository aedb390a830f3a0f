"""A short run of every stage of the recipe, on the shipped recordings instead of synthesised speech."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.audio.wav import read_wav
from antiphon_training.corpus import pictures, vocabulary
from antiphon_training.corpus.acoustics import analyse
from antiphon_training.corpus.answers import UNIT_FRAMES
from antiphon_training.corpus.recipe import VOCODER
from antiphon_training.domains.mini import MINI, SPOKEN_INTENTS, Intent
from antiphon_training.stages import alignment, codec, ear, export, eye, joint, speech
from clients.recordings import make
from inference_service.checkpoints.folder import load_duplex
from inference_service.media.mel import CONTEXT, mel_power
from inference_service.models.pacing import chunks

FOLDER = Path(make.__file__).parent
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
SECONDS = 0.1
"""Of each stage, which takes a step at least."""
PICTURES = 200


def pcm_of(file: str) -> np.ndarray:
    pcm = read_wav(FOLDER / file)
    return pcm[: len(pcm) // 160 * 160]


def write_corpus(path: Path, *intents: Intent) -> None:
    rows, powers = [], []
    for _ in range(8):
        for entry in MANIFEST:
            if Path(entry["file"]).stem not in intents:
                continue
            power = mel_power(pcm_of(entry["file"]), np.zeros(CONTEXT, np.float32))
            rows.append((Path(entry["file"]).stem, entry["text"], entry["expected_reply"]))
            powers.append(np.log(power + 1e-8).astype(np.float16))
    np.savez(path, text=np.array(rows), length=[len(p) for p in powers], log_power=np.concatenate(powers))


def write_replies(path: Path) -> None:
    texts, units = [], []
    for entry in MANIFEST * 2:
        frames = np.concatenate([analyse(pcm_of(entry["file"]), VOCODER.bands)] * 4)
        for i in range(len(chunks(entry["expected_reply"]))):
            units.append(frames[i * UNIT_FRAMES : (i + 1) * UNIT_FRAMES])
        texts.append(entry["expected_reply"])
    np.savez(path, text=np.array(texts), length=[len(u) for u in units], frames=np.concatenate(units))


def look_and_see(work: Path) -> None:
    """The stages that teach it to see, from `joint.pt` to `seeing.pt`."""
    pictures.build(work / "pictures.npz", PICTURES, 1)
    eye.train(work / "pictures.npz", work / "eye.pt", SECONDS)
    heard, eyes = (torch.load(work / name, weights_only=True) for name in ("joint.pt", "eye.pt"))
    torch.save(heard | eyes, work / "seeing.pt")
    common = {"frozen_share": 1.0, "batch": 2, "smoothing": 0.0, "pictures": work / "pictures.npz"}
    files = (work / "tokenizer", work / "ear.pt", work / "seeing.pt", SECONDS, True)
    questions, spoken = work / "questions.npz", work / "corpus.npz"
    joint.train(MINI, questions, *files, lesson=joint.LOOKING_LESSON, **common)  # type: ignore[arg-type]
    joint.train(MINI, spoken, *files, questions=questions, lesson=joint.SEEING_LESSON, **common)  # type: ignore[arg-type]


def take_turns(work: Path) -> None:
    """The stages that teach it to chat and to write down, from `seeing.pt` to `turns.pt`."""
    spoken = [work / "corpus.npz", work / "questions.npz"]
    alignment.build(spoken, work / "ear.pt", work / "word_ends.npz", SECONDS)
    shutil.copy(work / "seeing.pt", work / "turns.pt")
    joint.train(
        MINI, work / "corpus.npz", work / "tokenizer", work / "ear.pt", work / "turns.pt", SECONDS, True,
        frozen_share=1.0, batch=2, smoothing=0.0, questions=work / "questions.npz",
        pictures=work / "pictures.npz", word_ends=work / "word_ends.npz", lesson=joint.TURNS_LESSON,
    )  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    work = tmp_path_factory.mktemp("recipe")
    write_corpus(work / "corpus.npz", *SPOKEN_INTENTS)
    write_corpus(work / "questions.npz", Intent.VISION)
    write_replies(work / "replies.npz")
    vocabulary.build(MINI, work / "tokenizer")
    ear.train(work / "corpus.npz", work / "ear.pt", SECONDS, batch=24)
    joint.train(
        MINI, work / "corpus.npz", work / "tokenizer", work / "ear.pt", work / "joint.pt", SECONDS, batch=2
    )
    look_and_see(work)
    take_turns(work)
    codec.make(MINI, work / "replies.npz", work / "codec.pt")
    files = (work / "replies.npz", work / "codec.pt", work / "tokenizer", work / "turns.pt")
    speech.train(MINI, *files, work / "speech.pt", SECONDS, resume=False)
    export.export(MINI, *(work / f for f in ("turns.pt", "speech.pt", "codec.pt", "tokenizer", "checkpoint")))
    torch.set_num_threads(threads)
    return work


@pytest.mark.long
def test_the_recipe_ends_in_a_checkpoint_that_the_worker_can_load(work: Path) -> None:
    model, tokenizer, config = load_duplex(work / "checkpoint", torch.device("cpu"))
    assert config.name == "antiphon-mini"
    assert config.vision is not None
    assert len(model.see([torch.zeros(64, 64, 3, dtype=torch.uint8)])[0]) == config.vision.queries
    assert (
        tokenizer.decode(tokenizer.encode("hello how can i help you")).strip() == "hello how can i help you"
    )
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


def test_the_checkpoint_is_small_enough_to_ship(work: Path) -> None:
    assert (work / "checkpoint" / "model.safetensors").stat().st_size <= 25_000_000


def test_a_stage_goes_on_from_its_last_save(work: Path) -> None:
    before = torch.load(work / "ear.pt", weights_only=True)
    ear.train(work / "corpus.npz", work / "ear.pt", 0.0, resume=True, batch=24)
    after = torch.load(work / "ear.pt", weights_only=True)
    assert all(torch.equal(before[name], after[name]) for name in before)
