"""vLLM as a process, in its own environment: `python -m benchmarks.vllm.theirs FOLDER DTYPE`.

vLLM runs its engine in this process, because its separate processes spin while they wait. Each chunk of a
stream is a request with the whole context so far, which the prefix cache finds.
"""

import os
import sys
import time
from collections.abc import Sequence

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}
_OUT = os.dup(1)
os.dup2(2, 1)  # the library's output must not mix with the answers

from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402

from benchmarks.vllm.scene import HEARD, LIMIT, SAID, STREAMS, ids, serve  # noqa: E402


class VllmEngine:
    """vLLM's engine with greedy requests."""

    def __init__(self, folder: str, dtype: str) -> None:
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                dtype=dtype,
                skip_tokenizer_init=True,
                max_model_len=LIMIT,
                max_num_seqs=STREAMS,
                enable_prefix_caching=True,
            )
        )
        self._count = 0
        for callers in (1, STREAMS):
            self.chats([ids(8, caller) for caller in range(callers)], 4)

    def chats(self, prompts: Sequence[list[int]], most: int) -> list[list[int]]:
        names = [self._add(prompt, most) for prompt in prompts]
        said: dict[str, list[int]] = {}
        while len(said) < len(names):
            said |= self._step()
        return [said[name] for name in names]

    def streams(self, seconds: int) -> list[float]:
        contexts: list[list[int]] = [[] for _ in range(STREAMS)]
        begin, latencies = time.monotonic() + 0.1, []
        asked: dict[str, tuple[int, float]] = {}
        waiting: list[list[int]] = [[] for _ in range(STREAMS)]
        number = 0
        while len(latencies) < STREAMS * seconds:
            while number < STREAMS * seconds and time.monotonic() >= begin + number / STREAMS:
                waiting[number % STREAMS].append(number)
                number += 1
            busy = {slot for slot, _ in asked.values()}
            for slot, chunks in enumerate(waiting):
                if chunks and slot not in busy:
                    chunk = chunks.pop(0)
                    contexts[slot] += ids(HEARD, chunk)
                    asked[self._add(contexts[slot], SAID)] = slot, begin + chunk / STREAMS
            if not asked:
                time.sleep(max(0.0, begin + number / STREAMS - time.monotonic()))
                continue
            for name, said in self._step().items():
                slot, due = asked.pop(name)
                contexts[slot] += said[:-1]
                latencies.append(time.monotonic() - due)
        return latencies

    def _add(self, prompt: list[int], most: int) -> str:
        self._count += 1
        greedy = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(self._count), {"prompt_token_ids": list(prompt)}, greedy)
        return str(self._count)

    def _step(self) -> dict[str, list[int]]:
        """Run one step; return the tokens of the finished requests by their ids."""
        return {
            it.request_id.partition("-")[0]: list(it.outputs[0].token_ids)
            for it in self._engine.step()
            if it.finished
        }


if __name__ == "__main__":
    engine = VllmEngine(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os.dup2(_OUT, 1)
    serve(engine)
