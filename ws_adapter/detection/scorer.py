"""Scorers of sound: the probability of speech in each window."""

import logging
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from ws_adapter.detection import silero
from ws_adapter.detection.energy import Energy
from ws_adapter.detection.silero import Silero
from ws_adapter.protocol.wire.codec import Samples

logger = logging.getLogger(__name__)

TITLES: Final = {
    Silero.name: "Silero VAD",
    Energy.name: "loudness alone; `pip install 'antiphon[vad]'` brings Silero VAD",
}
"""Display names of the scorers."""

M = TypeVar("M")
"""The scorer's state of one session."""


class Scorer(Protocol[M]):
    """A scorer for many sessions at once; no session changes the scores of another."""

    @property
    def name(self) -> str:
        """The name of the scorer, one word."""

    def begin(self) -> M:
        """Return the state of a new session."""

    def score(self, memories: Sequence[M], windows: Sequence[Samples]) -> list[Samples]:
        """Return the scores of each session's next windows, float32 [windows], from 0 to 1.

        Each entry of `windows` is float32 [windows, `speech.WINDOW`] at 16 kHz, with at least one window. A
        session appears at most once.
        """


def best_scorer() -> "Scorer[silero.Memory] | Scorer[Energy.Memory]":
    """Return the best scorer that is installed."""
    file = silero.find()
    if file is None:
        return Energy()
    try:
        return Silero(file)
    except (ValueError, OSError) as error:
        logger.warning("Silero VAD cannot be used, speech is detected by loudness alone: %s", error)
        return Energy()
