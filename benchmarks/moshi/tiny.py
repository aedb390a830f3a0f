"""A tiny Moshi with random weights, and the cost of its frames on this machine's CPU."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import MimiConfig, MoshiConfig, MoshiForConditionalGeneration

from inference_service.checkpoints.moshi.folder import load
from inference_service.engine.tick import Tick
from inference_service.families.moshi.runtime import MoshiRuntime
from inference_service.interface.setups import (
    DuplexSetup,
    UnitFormat,
    UnitInput,
    UnitOverrides,
)
from inference_service.session.base.session import QueuedUnit

FRAME: Final = UnitFormat(0.08, 24_000)
_WARM: Final = 5


class Speed(NamedTuple):
    """The CPU time of a tick in seconds, with `sessions` sessions."""

    sessions: int
    tick_s: float

    @property
    def factor(self) -> float:
        """The real-time factor of all sessions together: below 1, one CPU is fast enough."""
        return self.tick_s / FRAME.seconds


def config() -> MoshiConfig:
    """Return the configuration: two layers, four codebooks, a codec with two filters."""
    mimi = MimiConfig(
        hidden_size=32,
        num_filters=2,
        codebook_size=32,
        codebook_dim=8,
        num_quantizers=6,
        vector_quantization_hidden_dimension=8,
        upsample_groups=32,
        num_hidden_layers=2,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=10,
    )
    depth = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 96,
        "sliding_window": 4,
    }
    return MoshiConfig(
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=192,
        num_codebooks=4,
        sliding_window=96,
        max_position_embeddings=96,
        audio_encoder_config=mimi.to_dict(),
        depth_decoder_config=depth,
    )


def runtime(slots: int) -> MoshiRuntime:
    """Return a runtime of the tiny model with `slots` slots."""
    torch.manual_seed(3)
    with TemporaryDirectory() as name:
        folder = Path(name)
        described = config()
        MoshiForConditionalGeneration(described).eval().save_pretrained(folder)
        words = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<pad>", 0.0)]
        words += [(f"\u2581word{number}", -2.0) for number in range(described.vocab_size - len(words))]
        fast = Tokenizer(models.Unigram(words, unk_id=0, byte_fallback=False))
        fast.pre_tokenizer = pre_tokenizers.Metaspace()
        fast.decoder = decoders.Metaspace()
        fast.save(str(folder / "tokenizer.json"))
        return MoshiRuntime(load(folder, torch.device("cpu"), torch.float32), slots)


@torch.inference_mode()
def measure(where: MoshiRuntime, sessions: int, frames: int) -> Speed:
    """Return the median CPU time of a tick in which every session receives and generates a frame."""
    tick, sound = Tick(where), np.random.default_rng(1).standard_normal(FRAME.samples).astype(np.float32) / 10
    setup = DuplexSetup("", where.info.duplex_defaults, where.info.window, seed=1, format=FRAME)
    crowd = [where.open("measured", slot, setup, lambda events: None) for slot in range(sessions)]
    for session in crowd:
        session.preprocessor.begin()
        where.start(session)
    times = []
    for number in range(frames + _WARM):
        for session in crowd:
            if number:
                heard = session.preprocessor.prepare(UnitInput(sound))
                unit = QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
                session.queue.prefill(unit)
        began = time.process_time()
        while tick.has_work(crowd):
            tick.run(crowd)
        times.append(time.process_time() - began)
        for session in crowd:
            session.events.clear()
    for session in crowd:
        session.leave()
        where.clear(session.slot)
    return Speed(sessions, float(np.median(times[_WARM:])))
