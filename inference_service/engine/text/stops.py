"""Strings that end an answer."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through as long as no stop string is in it; what may be the beginning of one waits."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._waiting = ""
        self.found = False
        """Whether a stop string has come; nothing passes after it."""

    def push(self, text: str) -> str:
        """The text that is free to go; up to the first stop string if there is one now."""
        if self.found:
            return ""
        self._waiting += text
        begins = [at for stop in self._stops if (at := self._waiting.find(stop)) >= 0]
        self.found = bool(begins)
        free = min(begins) if begins else len(self._waiting) - self._suspicious()
        passed, self._waiting = self._waiting[:free], self._waiting[free:]
        return passed

    def _suspicious(self) -> int:
        """How many characters at the end may begin a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for count in range(min(longest, len(self._waiting)), 0, -1):
            if any(stop.startswith(self._waiting[-count:]) for stop in self._stops):
                return count
        return 0

    def flush(self) -> str:
        """What has waited in vain: no more text comes."""
        rest, self._waiting = "" if self.found else self._waiting, ""
        return rest
