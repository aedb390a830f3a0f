"""A token bucket."""


class Bucket:
    """Lets `burst` tokens be taken at once, and `per_s` a second in the long run. Times in seconds."""

    __slots__ = ("_burst", "_filled_at", "_per_s", "_tokens")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        """The bucket is full at `now`."""
        self._burst = burst
        self._per_s = per_s
        self._tokens = burst
        self._filled_at = now

    def take(self, now: float, count: float = 1.0) -> bool:
        """Takes `count` tokens; False if there are not as many, and then none is taken."""
        tokens = self._tokens + (now - self._filled_at) * self._per_s
        self._tokens = self._burst if tokens > self._burst else tokens
        self._filled_at = now
        if self._tokens < count:
            return False
        self._tokens -= count
        return True

    @property
    def wait_s(self) -> float:
        """How long after the last `take` the next token can be taken."""
        return max(1 - self._tokens, 0.0) / self._per_s
