"""Goal E1 for cost: 16 sessions in one batch, relative to the same sessions in sequence."""

import statistics
import time
from typing import Any, Final

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import Goal, Report
from inference_service.checkpoints.causal import CausalCheckpoint
from inference_service.checkpoints.location import find
from inference_service.engine.tick import Tick
from inference_service.families.causal_runtime import CausalRuntime
from inference_service.interface.engine import Done
from inference_service.interface.setups import (
    Sampling,
    StreamInput,
    TokensSetup,
    UnitOverrides,
)
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.base.session import QueuedUnit, Session

SESSIONS: Final = 16
HEARD: Final = 25
SAID: Final = 10
"""The number of input and output tokens of a unit."""
_LIMIT: Final = 1024
_SEED: Final = 1


def larger() -> CausalCheckpoint:
    """Return a model of eight layers of width 512 with random weights and no end-of-sequence token."""
    torch.manual_seed(_SEED)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=_LIMIT,
    )
    plain = Tokenizer.load(find("antiphon-mini")).plain
    model = pack_linears(Qwen3ForCausalLM(config).eval())
    return CausalCheckpoint("512 x 8", "qwen3", model, plain, None, frozenset(), _LIMIT, Sampling())


class TokenStreams:
    """Sessions of token streams on one runtime."""

    def __init__(self, loaded: CausalCheckpoint, sessions: int) -> None:
        self._runtime = CausalRuntime(loaded, _LIMIT, sessions)
        self._tick = Tick(self._runtime)
        setup = TokensSetup(Sampling(max_new_tokens=SAID), seed=_SEED)
        self._sessions: list[Session[Any]] = [
            self._runtime.open(f"s-{slot}", slot, setup, lambda event: None) for slot in range(sessions)
        ]
        for session in self._sessions:
            session.preprocessor.begin()
            self._runtime.start(session)
        self._unit = 0

    @torch.inference_mode()
    def run(self, sessions: int) -> float:
        """Run one unit of the first `sessions` sessions in a batch; return the CPU-seconds per session.

        Raises `SystemExit` if a session did not generate all its tokens.
        """
        self._unit += 1
        chunk = StreamInput(tuple(range(HEARD)))
        for session in (batch := self._sessions[:sessions]):
            heard = session.preprocessor.prepare(chunk)
            session.queue.prefill(
                QueuedUnit(self._unit, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
            )
        since = time.thread_time()
        while self._tick.has_work(batch):
            self._tick.run(batch)
        spent = time.thread_time() - since
        for session in batch:
            self._check(session)
            session.events.clear()
        return spent / sessions

    def _check(self, session: Session[Any]) -> None:
        done = [event for event in session.events if isinstance(event, Done)]
        if [(it.unit, it.usage.output_text_tokens) for it in done] != [(self._unit, SAID)]:
            raise SystemExit(f"{session.id} did not generate its {SAID} tokens: {list(session.events)[-2:]}")


async def measure(is_short: bool) -> Report:
    """Return the medians of several rounds, with one session and with `SESSIONS` sessions in turn."""
    torch.set_num_threads(1)
    loaded = larger()
    alone, together = TokenStreams(loaded, 1), TokenStreams(loaded, SESSIONS)
    rounds = [(alone.run(1), together.run(SESSIONS)) for _ in range(6 if is_short else 16)][1:]
    one, many = (statistics.median(times) * 1000 for times in zip(*rounds, strict=True))
    return Report(
        "batching",
        f"Token streams of a random Qwen3 of 512 x 8, {HEARD} tokens in and {SAID} out, one thread",
        ("sessions at once", "CPU-ms of a session's unit", "from", "to"),
        [
            (1, one, *(1000 * f(times for times, _ in rounds) for f in (min, max))),
            (SESSIONS, many, *(1000 * f(times for _, times in rounds) for f in (min, max))),
        ],
        [Goal(f"E1 {SESSIONS} sessions in a batch over {SESSIONS} in sequence", many / one, 0.25)],
        where="in one process",
    )
