"""Captures and compilations: a worker makes all of them at its start, and counts later ones."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon_service.semconv import Preparation

logger = logging.getLogger(__name__)


class Preparations:
    """Counts captures and compilations while sessions are served: each delays all sessions."""

    def __init__(self) -> None:
        self.late: Counter[Preparation] = Counter()
        self._is_over = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Return a context manager that suspends counting; counting starts at its end unless it raises."""
        self._is_over = False
        yield
        self._is_over = True

    def note(self, what: Preparation, region: str) -> None:
        """Count a late capture or compilation, and log a warning."""
        if not self._is_over:
            return
        self.late[what] += 1
        logger.warning(
            "region prepared in service: all sessions waited for it",
            extra={"preparation": what.value, "region": region},
        )


PREPARATIONS = Preparations()
"""The counters of this process; the choice of `compiling` is per process too."""
