"""Tests of the probe's check of a server's default voice."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from antiphon_command.probe.voice import violations

SECOND = np.full(16_000, 0.1, "<f4")
GOOD = {
    "name": "default",
    "duration": 1.0,
    "sample_rate": 16_000,
    "samples": 16_000,
    "base64": base64.b64encode(SECOND.tobytes()).decode(),
}


def told(**changed: Any) -> bytes:
    return json.dumps({name: value for name, value in (GOOD | changed).items() if value is not ...}).encode()


def encoded(samples: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"samples": len(samples), "base64": base64.b64encode(samples.tobytes()).decode()}


def test_valid_default_voice_has_no_violation() -> None:
    assert list(violations(told())) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<html>", "is no JSON object"),
        (b"[]", "is no JSON object"),
        (told(name=...), "the default voice has no name"),
        (told(duration="1"), "duration is '1', no number"),
        (told(sample_rate=24_000), "24000 samples a second, not 16000"),
        (told(samples=15_999), "samples is 15999, but 16000 came"),
        (told(base64="!"), "audio is not base64"),
        (told(**encoded(SECOND * 20)), "audio goes beyond -1 to 1"),
        (told(**encoded(SECOND[:1600])), "lasts 0.1 s"),
    ],
)
def test_broken_rule_is_reported(body: bytes, text: str) -> None:
    assert text in " | ".join(violations(body))
