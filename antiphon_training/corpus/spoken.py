"""Spoken sentences of a domain as mel features, synthesised in several processes into one file."""

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from antiphon_training.corpus.voices import training_voice
from antiphon_training.domains.domain import Domain, Exchange, Split
from inference_service.media.mel import BANDS, CONTEXT, HOP, mel_power

TRAINING_SEED = 20_260_101
VISION_SEED = 20_261_201
_SHARD = 250


@dataclass(frozen=True)
class Utterance:
    """One spoken question: mel power [frames, 80] at 100 frames per second, and its exchange."""

    exchange: Exchange
    power: NDArray[np.float32]


def _synthesise(
    domain: Domain, seed: int, count: int, *, intent: str | None
) -> list[tuple[str, str, str, NDArray[np.float16]]]:
    rng = random.Random(seed)
    shard = []
    for _ in range(count):
        exchange = domain.draw(rng, Split.TRAIN, intent)
        pcm = training_voice(rng).say(exchange.question)
        pcm = np.pad(pcm, (0, 480 - len(pcm) % HOP))
        power = mel_power(pcm, np.zeros(CONTEXT, np.float32))
        log_power = np.log(power + 1e-8).astype(np.float16)
        shard.append((str(exchange.intent), exchange.question, exchange.reply, log_power))
    return shard


def build(
    domain: Domain,
    path: Path,
    utterances: int,
    processes: int,
    seed: int = TRAINING_SEED,
    intent: str | None = None,
) -> None:
    """Synthesise a corpus into `path` (.npz), of one intent if it is given.

    The same seed gives the same corpus.
    """
    seeds = [seed + i for i in range(-(-utterances // _SHARD))]
    counts = [min(_SHARD, utterances - i * _SHARD) for i in range(len(seeds))]
    with ProcessPoolExecutor(processes) as pool:
        shards = list(
            tqdm(
                pool.map(partial(_synthesise, domain, intent=intent), seeds, counts),
                total=len(seeds),
                desc="corpus",
                unit_scale=_SHARD,
            )
        )
    rows = [row for shard in shards for row in shard]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        text=np.array([row[:3] for row in rows]),
        length=np.array([len(row[3]) for row in rows]),
        log_power=np.concatenate([row[3] for row in rows]),
    )


def load(path: Path) -> list[Utterance]:
    """Return the utterances of a corpus made by `build`."""
    data = np.load(path)
    ends = np.cumsum(data["length"])
    log_power = data["log_power"]
    assert log_power.shape[1] == BANDS
    corpus = []
    for (intent, question, reply), length, end in zip(data["text"], data["length"], ends, strict=True):
        power = np.exp(log_power[end - length : end].astype(np.float32))
        corpus.append(Utterance(Exchange(str(intent), str(question), str(reply)), power))
    return corpus
