"""What vLLM continues, and how settings of a session become its parameters. Imports no vLLM."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from inference_service.api.setups import KEEP_ALL, Sampling, Tenant
from inference_service.engine.batch.draw import COLDEST


@dataclass(frozen=True)
class Request:
    """A context, and how it is to be continued."""

    ids: tuple[int, ...]
    most: int
    """Tokens that may be sampled."""
    sampling: Sampling
    ends: frozenset[int]
    """The model's end-of-sequence ids."""
    seed: int
    tenant: Tenant

    @property
    def cache_salt(self) -> str | None:
        """Part of the name of every cached block, so that tenants share none."""
        return self.tenant.salt.hex() or None

    def parameters(self) -> dict[str, Any]:
        """Return the keyword arguments of vLLM's `SamplingParams`.

        Ids that end a sequence are passed as stop ids: vLLM would read its own from files by other rules.
        Text is made here, so vLLM detokenizes nothing.
        """
        drawn = self.sampling
        is_greedy = drawn.temperature < COLDEST
        ends = () if drawn.ignore_eos else self.ends
        return {
            "max_tokens": self.most,
            "temperature": 0.0 if is_greedy else drawn.temperature,
            "top_p": drawn.top_p,
            "top_k": 0 if drawn.top_k == KEEP_ALL else drawn.top_k,
            "repetition_penalty": drawn.repetition_penalty,
            "stop_token_ids": sorted({*drawn.stop_token_ids, *ends}),
            "ignore_eos": True,
            "seed": None if is_greedy else self.seed,
            "detokenize": False,
        }


def seed_of(seed: int, unit: int) -> int:
    """Return the seed of one unit of a session, below 2 ** 63: vLLM seeds each request by itself."""
    return int.from_bytes(sha256(f"{seed}/{unit}".encode()).digest()[:8]) >> 1
