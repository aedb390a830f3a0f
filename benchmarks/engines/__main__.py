"""Comparison of both engines of `antiphon serve`: `python -m benchmarks.engines [--short] [--document]`.

Run it in the environment that `make vllm` creates, which has both engines:

    .venv-vllm/bin/python -m benchmarks.engines --document

Both engines load the same folder, a Qwen3 of 512 x 8 with random weights, and compute on one thread. In each
round they run in turn, with the same callers of `/v1/chat/completions`. The command prints a table of
medians; `--document` writes it to `results/` and into `docs/engines.md`. There are no goals.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.engines.chats import WORDS, Answer, chats, chats_beside
from benchmarks.engines.stack import served
from benchmarks.report import Report, put, section
from inference_service.checkpoints.location import find

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = Path(__file__).parent / "results"
DOCUMENT: Final = ROOT / "docs/engines.md"
BEGIN: Final = "<!-- benchmarks.engines: begin -->"
END: Final = "<!-- benchmarks.engines: end -->"
ENGINES: Final = ("antiphon", "vllm")
CALLERS: Final = (1, 8)
MOST: Final = 48
"""Tokens of an answer."""
LIMIT: Final = 1024
LONG: Final = 800
"""Tokens of a long question."""
CROWD: Final = 4
"""The number of callers with long questions while one caller asks short questions."""
TEMPLATE: Final = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save(folder: Path) -> str:
    """Write the model that both engines load; return a question of about `LONG` tokens."""
    words = PreTrainedTokenizerFast(tokenizer_file=str(find("antiphon-mini") / "tokenizer.json"))
    words.chat_template = TEMPLATE
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2 * LIMIT,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return WORDS * (LONG // len(words.encode(WORDS)))


class Figures:
    """The measurements of one engine, over all rounds."""

    def __init__(self) -> None:
        self.start_s: list[float] = []
        self.memory_mb: list[float] = []
        self.answers: dict[int, list[list[Answer]]] = {callers: [] for callers in CALLERS}
        self.beside: list[Answer] = []

    def take(self, engine: str, folder: Path, dtype: str, each: int, long: str) -> None:
        """Serve once and measure every number of callers, with `each` questions per caller."""
        with served(engine, folder, max(CALLERS), LIMIT, dtype) as stack:
            self.start_s.append(stack.start_s)
            for callers in CALLERS:
                chats(stack.address, folder.name, callers, 1, MOST)  # warm-up for new shapes
                self.answers[callers].append(chats(stack.address, folder.name, callers, each, MOST))
            self.beside += chats_beside(stack.address, folder.name, CROWD, long, each, MOST)
            self.memory_mb.append(stack.memory_mb())

    def first_ms(self, callers: int, share: float) -> float:
        """Return the quantile `share` of the times to the first text over all rounds, in milliseconds."""
        return _quantile_ms([it for crowd in self.answers[callers] for it in crowd], share)

    def tokens_per_s(self, callers: int) -> float:
        """Return the throughput of all callers together: the median of the rounds."""

        def of(crowd: list[Answer]) -> float:
            took = max(it.ended for it in crowd) - min(it.began for it in crowd)
            return sum(it.tokens for it in crowd) / took

        return statistics.median(map(of, self.answers[callers]))


def _quantile_ms(answers: list[Answer], share: float) -> float:
    times = sorted(1000 * (it.first - it.began) for it in answers)
    return times[min(len(times) - 1, int(share * len(times)))]


def rows(found: dict[str, Figures]) -> list[tuple[Any, ...]]:
    """Return rows of a measure, the value of each engine, and their ratio."""
    measures: list[tuple[str, Callable[[Figures], float]]] = [
        ("start until it serves, s", lambda it: statistics.median(it.start_s)),
        ("memory of all processes, MB", lambda it: statistics.median(it.memory_mb)),
    ]
    for callers in CALLERS:
        name = f"{callers} at once" if callers > 1 else "1 caller"
        measures += [
            (f"{name}: first text, ms, p50", lambda it, n=callers: it.first_ms(n, 0.5)),  # type: ignore[misc]
            (f"{name}: first text, ms, p95", lambda it, n=callers: it.first_ms(n, 0.95)),  # type: ignore[misc]
            (f"{name}: tokens/s", lambda it, n=callers: it.tokens_per_s(n)),  # type: ignore[misc]
        ]
    name = f"1 caller beside {CROWD} with questions of {LONG} tokens: first text"
    measures += [
        (f"{name}, ms, p50", lambda it: _quantile_ms(it.beside, 0.5)),
        (f"{name}, times that alone", lambda it: _quantile_ms(it.beside, 0.5) / it.first_ms(1, 0.5)),
    ]
    table = []
    for name, figure in measures:
        ours, theirs = figure(found["antiphon"]), figure(found["vllm"])
        table.append((name, ours, theirs, ours / theirs))
    return table


def write(text: str) -> None:
    """Write a table between the marks of the page."""
    put(text, DOCUMENT, BEGIN, END)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="one round, two questions per caller")
    parser.add_argument("--document", action="store_true", help="write results/ and docs/engines.md")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    given = parser.parse_args()
    rounds, each = (1, 2) if given.short else (3, 6)
    found = {engine: Figures() for engine in ENGINES}
    with TemporaryDirectory(prefix="antiphon-engines-") as made:
        folder = Path(made) / "tiny"
        long = save(folder)
        for _ in range(rounds):
            for engine in ENGINES:
                found[engine].take(engine, folder, given.dtype, each, long)
    title = f"A random Qwen3 of 512 x 8 in {given.dtype}, {MOST} tokens an answer, one thread that computes"
    report = Report(
        "engines",
        title,
        ("what", "`antiphon`", "`vllm`", "`antiphon` / `vllm`"),
        rows(found),
        where="all processes on the same cores",
    )
    print(report.table())
    if given.document:
        report.write(given.short, RESULTS)
        write(section(json.loads((RESULTS / "engines.json").read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
