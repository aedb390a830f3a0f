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
"""What each is called for people."""

M = TypeVar("M")
"""What it remembers of one session."""


class Scorer(Protocol[M]):
    """Scores many sessions at once; none of them changes what another one gets."""

    @property
    def name(self) -> str:
        """One word."""

    def begin(self) -> M:
        """Return the memory of a session of which nothing was heard."""

    def score(self, memories: Sequence[M], windows: Sequence[Samples]) -> list[Samples]:
        """Score from 0 to 1 for the next sound of sessions, of each float32 [windows, `speech.WINDOW`].

        It is at 16 kHz, and one window at least. A session is named once at most.
        """


def best_scorer() -> "Scorer[silero.Memory] | Scorer[Energy.Memory]":
    """Return the best that is installed."""
    file = silero.find()
    if file is None:
        return Energy()
    try:
        return Silero(file)
    except (ValueError, OSError) as error:
        logger.warning("speech is not detected by Silero VAD: %s", error)
        return Energy()
