"""Which values decoding settings may have, and how those of the wire become those of the engine.

A value is checked once, against one table: `DUPLEX_RANGES` for `DuplexConfig`, and for `SamplingParams`
the ranges of the duplex settings that its fields stand for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from antiphon.semconv import Reason
from antiphon.v1 import common_pb2
from inference_service.engine.api import KEEP_ALL, UnitOverrides
from inference_service.errors import BadField, UnitRefused

Number = int | float


@dataclass(frozen=True)
class Range:
    """Allowed numbers, `low` and `high` included unless `above_low`."""

    low: float
    high: float
    above_low: bool = False

    def problem(self, value: Number) -> str | None:
        """What is wrong with `value`; None when nothing is. NaN is outside every range."""
        inside = self.low < value <= self.high if self.above_low else self.low <= value <= self.high
        if inside:
            return None
        bounds = f"above {self.low:g} and at most {self.high:g}" if self.above_low else self._bounds()
        return f"must be {bounds}, not {value:g}"

    def _bounds(self) -> str:
        return f"{self.low:g} or more" if self.high == float("inf") else f"{self.low:g} to {self.high:g}"


DUPLEX_RANGES = {
    "force_listen_count": Range(0, 60),
    "max_new_speak_tokens_per_chunk": Range(1, 100),
    "temperature": Range(0, 2),
    "top_k": Range(1, 1000),
    "top_p": Range(0, 1, above_low=True),
    "text_repetition_penalty": Range(0.5, 2),
    "text_repetition_window_size": Range(0, 8192),
    "length_penalty": Range(0.1, 5),
    "listen_prob_scale": Range(0, 10),
    "listen_top_k": Range(1, float("inf")),
    "tts_temperature": Range(0, 2),
}
"""Fields of `DuplexConfig` that hold a number, by the name they also have in `DuplexSettings`."""

SAMPLING_TO_DUPLEX = {
    "max_new_tokens": "max_new_speak_tokens_per_chunk",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "text_repetition_penalty",
    "length_penalty": "length_penalty",
}
"""Fields of `SamplingParams` that a duplex session has a setting for."""

_SAMPLING_RANGES = {name: DUPLEX_RANGES[duplex] for name, duplex in SAMPLING_TO_DUPLEX.items()} | {
    "top_k": Range(0, 1000)  # here 0 keeps all
}


def decimal(value: Number) -> Number:
    """The number its sender wrote: a 32-bit float of the wire read as its shortest decimal."""
    return value if isinstance(value, int) else float(str(np.float32(value)))


def sampling_values(
    params: common_pb2.SamplingParams, path: str
) -> Iterator[tuple[str, Number, BadField | None]]:
    """The fields set in `params` that a duplex session can honour: name, value, and what is wrong with it."""
    for name, allowed in _SAMPLING_RANGES.items():
        if params.HasField(name):
            value = decimal(getattr(params, name))
            problem = allowed.problem(value)
            if name == "top_k" and value == 0:
                value = KEEP_ALL
            yield name, value, BadField(f"{path}.{name}", problem) if problem else None


def unsupported_sampling(params: common_pb2.SamplingParams) -> list[str]:
    """The fields set in `params` that a duplex session cannot honour."""
    given = {
        "stop_token_ids": bool(params.stop_token_ids),
        "stop": bool(params.stop),
        "ignore_eos": params.HasField("ignore_eos"),
    }
    return [name for name, is_given in given.items() if is_given]


def unit_overrides(params: common_pb2.SamplingParams, path: str) -> UnitOverrides:
    """What `params` changes for one unit. Raises `UnitRefused` (PARAMS_INVALID) naming a bad field."""
    for name in unsupported_sampling(params):
        raise UnitRefused(
            Reason.PARAMS_INVALID, f"{path}.{name} has no meaning in a duplex unit.", f"{path}.{name}"
        )
    values: dict[str, Number] = {}
    for name, value, bad in sampling_values(params, path):
        if bad:
            raise UnitRefused(Reason.PARAMS_INVALID, f"{bad.path} {bad.problem}.", bad.path)
        values[name] = value
    if params.HasField("seed"):
        values["seed"] = params.seed
    return UnitOverrides(**values)  # type: ignore[arg-type]
