"""Floods of small events."""

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.neighbours.attacks import wire
from benchmarks.neighbours.attacks.attack import Assault, Attack
from benchmarks.neighbours.attacks.client import AttackClient

_CUT: Final = frozenset({"rate_limited", "closed 1008", "cut"})


def _flood(path: str, event: bytes, opener: Mapping[str, Any] | None = None, *opened: str) -> Assault:
    """Return an assault that sends `opener`, waits for one of `opened`, then floods `path` with `event`."""

    async def pour(client: AttackClient) -> None:
        async with client.visit(path) as visit:
            if opener is not None:
                await visit.say(opener)
                await visit.until(*opened)
            await visit.pour(wire.block(event))

    return pour


_INIT: Final[Mapping[str, Any]] = {"type": "session.init", "payload": {}}
_HEARS: Final = "/v1/realtime?mode=transcription"
_MODEL: Final[Mapping[str, Any]] = {"type": "session.update", "model": "antiphon-mini"}
_NOTE: Final = wire.event("client_diagnostic", text="slow" * 20)

ATTACKS: Final = (
    Attack(
        "events",
        _flood("/v1/realtime?mode=audio", wire.event("x"), _INIT, "session.created"),
        _CUT,
    ),
    Attack(
        "events-earlier",
        _flood(
            "/v1/realtime?mode=audio",
            wire.event("x"),
            {"type": "session.update", "session": {"instructions": "Answer."}},
            "session.created",
        ),
        _CUT,
    ),
    Attack(
        "events-duplex",
        _flood("/ws/duplex/adx_flood", wire.event("x"), {"type": "prepare"}, "prepared"),
        _CUT,
    ),
    Attack(
        "events-chat",
        _flood("/v1/realtime?mode=chat", wire.event("x"), _INIT, "session.created"),
        _CUT,
    ),
    Attack("events-ws-chat", _flood("/ws/chat", wire.event("x")), _CUT | {"missing_field"}),
    Attack(
        "diagnostics",
        _flood("/ws/duplex/adx_notes", _NOTE, {"type": "prepare"}, "prepared"),
        _CUT,
    ),
    Attack(
        "transcription-commits",
        _flood(_HEARS, wire.event("input_audio_buffer.commit"), _MODEL, "session.created"),
        _CUT | {"transcription.done", "buffer_full"},
    ),
    Attack(
        "transcription-final-commits",
        _flood(_HEARS, wire.event("input_audio_buffer.commit", final=True), _MODEL, "session.created"),
        _CUT | {"transcription.done", "buffer_full"},
    ),
)
