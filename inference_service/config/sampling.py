"""Ranges of decoding settings, and their conversion from the wire to the engine.

A value is checked once, against one table for each kind of session.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.contract import Reason
from antiphon.v1 import common_pb2
from inference_service.errors import BadField, UnitRefused
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    KEEP_ALL,
    Sampling,
    SessionSetup,
    UnitOverrides,
)

Number = int | float

MAX_CHAT_TOKENS = 4096
"""Limit of tokens of a chat answer."""
MAX_STOPS = 16
"""Limit of stop strings of a chat answer."""
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 1024
"""Limit of ids that end a unit."""


@dataclass(frozen=True)
class Range:
    """Allowed numbers, `low` and `high` included unless `above_low`."""

    low: float
    high: float
    above_low: bool = False

    def problem(self, value: Number) -> str | None:
        """Return the problem with `value`; None if there is none. NaN is outside every range."""
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
"""Numeric fields of `DuplexConfig`, which have the same names in `DuplexSettings`."""

SAMPLING_TO_DUPLEX = {
    "max_new_tokens": "max_new_speak_tokens_per_chunk",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "text_repetition_penalty",
    "length_penalty": "length_penalty",
}
"""Fields of `SamplingParams` with the setting of a duplex session that they stand for."""

_WIRE_TOP_K = Range(0, 1000)
"""The range of `top_k` on the wire, where 0 keeps all."""

DUPLEX_SAMPLING_RANGES = {name: DUPLEX_RANGES[duplex] for name, duplex in SAMPLING_TO_DUPLEX.items()} | {
    "top_k": _WIRE_TOP_K
}
"""Numeric fields of `SamplingParams` in a duplex session."""


def sampling_ranges(most_tokens: int) -> dict[str, Range]:
    """Return the numeric fields of `SamplingParams` with their ranges, for units of at most `most_tokens`
    tokens.
    """
    return {
        "max_new_tokens": Range(1, most_tokens),
        "temperature": Range(0, 2),
        "top_p": Range(0, 1, above_low=True),
        "top_k": _WIRE_TOP_K,
        "repetition_penalty": Range(0.5, 2),
        "length_penalty": Range(0.1, 5),
    }


def decimal(value: Number) -> Number:
    """Return the number that the sender wrote: a 32-bit float of the wire as its shortest decimal."""
    return value if isinstance(value, int) else float(str(np.float32(value)))


def sampling_values(
    params: common_pb2.SamplingParams, path: str, ranges: Mapping[str, Range]
) -> Iterator[tuple[str, Number, BadField | None]]:
    """Yield the numbers set in `params`: name, value for the engine, and the problem with it."""
    for name, allowed in ranges.items():
        if params.HasField(name):
            value = decimal(getattr(params, name))
            problem = allowed.problem(value)
            if name == "top_k" and value == 0:
                value = KEEP_ALL
            yield name, value, BadField(f"{path}.{name}", problem) if problem else None


def without_meaning_in_duplex(params: common_pb2.SamplingParams) -> list[str]:
    """Return the fields set in `params` that a duplex session cannot honour."""
    given = {
        "stop_token_ids": bool(params.stop_token_ids),
        "stop": bool(params.stop),
        "ignore_eos": params.HasField("ignore_eos"),
    }
    return [name for name, is_given in given.items() if is_given]


def read_sampling(
    params: common_pb2.SamplingParams, path: str, info: ModelInfo, *, chats: bool
) -> tuple[UnitOverrides, list[BadField]]:
    """Return the settings in `params` for a session that `chats` or streams, and every invalid field."""
    ranges = sampling_ranges(MAX_CHAT_TOKENS if chats else info.context_limit)
    values: dict[str, object] = {}
    bad = []
    for name, value, problem in sampling_values(params, path, ranges):
        values[name] = value
        bad += [problem] if problem else []
    problems = {
        "stop_token_ids": _stop_ids_problem(params.stop_token_ids, info.vocabulary),
        "stop": _stops_problem(params.stop)
        if chats
        else "is for CHAT sessions only"
        if params.stop
        else None,
    }
    bad += [BadField(f"{path}.{name}", problem) for name, problem in problems.items() if problem]
    if params.stop_token_ids:
        values["stop_token_ids"] = tuple(params.stop_token_ids)
    if params.stop:
        values["stop"] = tuple(params.stop)
    for name in ("ignore_eos", "seed"):
        if params.HasField(name):
            values[name] = getattr(params, name)
    return UnitOverrides(**values), bad  # type: ignore[arg-type]


def _stop_ids_problem(ids: Iterable[int], vocabulary: int) -> str | None:
    ids = list(ids)
    if len(ids) > MAX_STOP_TOKENS:
        return f"must hold at most {MAX_STOP_TOKENS} ids, not {len(ids)}"
    return unknown_id_problem(ids, vocabulary)


def unknown_id_problem(ids: Iterable[int], vocabulary: int) -> str | None:
    """Return the problem with ids outside the vocabulary; None if there are none."""
    highest = max(ids, default=-1)
    return f"must be ids below {vocabulary}, not {highest}" if highest >= vocabulary else None


def _stops_problem(stops: Sequence[str]) -> str | None:
    if len(stops) > MAX_STOPS:
        return f"must hold at most {MAX_STOPS} strings, not {len(stops)}"
    wrong = next((stop for stop in stops if not 1 <= len(stop) <= MAX_STOP_CHARACTERS), None)
    return (
        None
        if wrong is None
        else f"must be strings of 1 to {MAX_STOP_CHARACTERS} characters, not {len(wrong)}"
    )


def sampling_params(sampling: Sampling) -> common_pb2.SamplingParams:
    """Return `sampling` with every field stated, as GetInfo and SessionReady show it."""
    return common_pb2.SamplingParams(
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0 if sampling.top_k == KEEP_ALL else sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        length_penalty=sampling.length_penalty,
        stop_token_ids=sampling.stop_token_ids,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
    )


def unit_overrides(
    params: common_pb2.SamplingParams, path: str, setup: SessionSetup, info: ModelInfo
) -> UnitOverrides:
    """Return the overrides in `params` for one unit. Raises `UnitRefused` (PARAMS_INVALID) naming a bad
    field.
    """
    if setup.is_duplex:
        return _duplex_overrides(params, path)
    overrides, bad = read_sampling(params, path, info, chats=setup.is_chat)
    for field in bad:
        raise UnitRefused(Reason.PARAMS_INVALID, f"{field.path} {field.problem}.", field.path)
    for name in info.sampling_without_effect:
        value, only = getattr(overrides, name), getattr(info.sampling_defaults, name)
        if value not in (None, only):
            problem = f"must be {only:g} with the engine {info.engine.name}, which cannot apply it"
            raise UnitRefused(Reason.PARAMS_INVALID, f"{path}.{name} {problem}.", f"{path}.{name}")
    return overrides


def _duplex_overrides(params: common_pb2.SamplingParams, path: str) -> UnitOverrides:
    for name in without_meaning_in_duplex(params):
        raise UnitRefused(
            Reason.PARAMS_INVALID, f"{path}.{name} has no meaning in a duplex unit.", f"{path}.{name}"
        )
    values: dict[str, Number] = {}
    for name, value, bad in sampling_values(params, path, DUPLEX_SAMPLING_RANGES):
        if bad:
            raise UnitRefused(Reason.PARAMS_INVALID, f"{bad.path} {bad.problem}.", bad.path)
        values[name] = value
    if params.HasField("seed"):
        values["seed"] = params.seed
    return UnitOverrides(**values)  # type: ignore[arg-type]
