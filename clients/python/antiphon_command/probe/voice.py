"""Rules of `/api/default_ref_audio`: clients that send a voice fetch the default voice first."""

import json
from collections.abc import Iterator
from typing import Final

from antiphon.audio.samples import INPUT_RATE_HZ
from antiphon.connection.endpoint import DEFAULT_VOICE, page
from antiphon.connection.page import fetch
from antiphon.errors import ConnectError
from antiphon_command.probe.rules import audio, fields, sample_count

_SHORTEST_S: Final = 0.5
_LONGEST_S: Final = 30.0


async def default_voice(url: str, api_key: str | None) -> list[str]:
    """Return the violations of a server's default voice. Raises `ConnectError` or `AuthError`."""
    try:
        body = await fetch(page(url, DEFAULT_VOICE), api_key)
    except ConnectError as error:
        if error.reason == "not_found" or error.reason.startswith("http_"):
            return [f"there is no default voice: {error}"]
        raise
    return list(violations(body))


def violations(body: bytes) -> Iterator[str]:
    """Yield the violations of the body of the answer."""
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        yield "the default voice is no JSON object"
        return
    voice = {**told, "type": "the default voice"}
    yield from fields(voice, name=str, duration=float, sample_rate=int, samples=int, base64=str)
    yield from audio(voice.get("base64"))
    if voice.get("sample_rate") != INPUT_RATE_HZ:
        yield f"the default voice has {voice.get('sample_rate')!r} samples a second, not {INPUT_RATE_HZ}"
    samples = sample_count(str(voice.get("base64")))
    if voice.get("samples") != samples:
        yield f"samples is {voice.get('samples')!r}, but {samples} came"
    seconds = samples / INPUT_RATE_HZ
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        yield f"the default voice lasts {seconds:g} s, not {_SHORTEST_S:g} s to {_LONGEST_S:g} s"
