"""The scenes and the protocol of both engine processes. It imports only the standard library.

A scene is a workload: concurrent chats, or token streams in real time. An engine runs as a process,
`python -m benchmarks.vllm.ours|theirs FOLDER DTYPE`. It prints `ready`, then reads a scene from each line of
JSON and answers with a line of its figures.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

READY: Final = "ready"
PROMPT: Final = 128
"""Tokens of the prompt of a chat."""
ANSWER: Final = 64
"""Tokens of the answer of a chat."""
HEARD: Final = 25
"""Input tokens of a stream per second."""
SAID: Final = 5
"""Output tokens of a stream per second."""
STREAMS: Final = 16
"""The number of streams."""
VOCABULARY: Final = 8192
LIMIT: Final = 1024
"""Tokens of a context."""


@dataclass
class Figures:
    """The results of a scene."""

    tokens_per_s: float = 0.0
    cpu_ms_per_token: float = 0.0
    """CPU time of the whole process per output token."""
    latencies_ms: list[float] = field(default_factory=list)
    """The latencies of stream chunks, from the due time to the last token."""
    said: list[list[int]] = field(default_factory=list)


def ids(count: int, seed: int) -> list[int]:
    """Return `count` token ids, the same in both processes."""
    return [(seed * 7919 + i * 104_729) % (VOCABULARY - 512) + 256 for i in range(count)]


class Engine(Protocol):
    """An engine that continues token ids greedily."""

    def chats(self, prompts: Sequence[list[int]], most: int) -> list[list[int]]:
        """Continue all prompts concurrently, with `most` tokens each; return the new tokens."""

    def streams(self, seconds: int) -> list[float]:
        """Run `STREAMS` streams with a chunk per second each, evenly spread; return latencies in seconds."""


def chat(engine: Engine, callers: int, seed: int) -> Figures:
    """Run concurrent callers, each with a different prompt."""
    prompts = [ids(PROMPT, seed * 1000 + caller) for caller in range(callers)]
    began, spent = time.monotonic(), time.process_time()
    said = engine.chats(prompts, ANSWER)
    took, spent = time.monotonic() - began, time.process_time() - spent
    count = sum(map(len, said))
    return Figures(count / took, 1000 * spent / count, said=said)


def stream(engine: Engine, seconds: int) -> Figures:
    """Run streams in real time for `seconds`."""
    spent = time.process_time()
    latencies = engine.streams(seconds)
    spent = time.process_time() - spent
    return Figures(0.0, 1000 * spent / (len(latencies) * SAID), [1000 * it for it in latencies])


def serve(engine: Engine) -> None:
    """Answer each line of standard input."""
    print(READY, flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        scene: Callable[..., Figures] = {"chat": chat, "stream": stream}[asked.pop("scene")]
        print(json.dumps(asdict(scene(engine, **asked))), flush=True)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
