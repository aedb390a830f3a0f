"""Captures and compilations: a worker makes all of them at its start, and counts those that come later."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon_service.semconv import Preparation

logger = logging.getLogger(__name__)


class Preparations:
    """Counts captures and compilations while sessions are served: all sessions wait for each."""

    def __init__(self) -> None:
        self.late: Counter[Preparation] = Counter()
        self._is_over = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count nothing in the block of this `with`, and everything after it unless it raises."""
        self._is_over = False
        yield
        self._is_over = True

    def note(self, what: Preparation, region: str) -> None:
        """Count a capture or a compilation that comes late, and warn of it."""
        if not self._is_over:
            return
        self.late[what] += 1
        logger.warning(
            "region prepared in service: all sessions waited for it",
            extra={"preparation": what.value, "region": region},
        )


PREPARATIONS = Preparations()
"""Those of this process, as is the choice of `compiling`."""
