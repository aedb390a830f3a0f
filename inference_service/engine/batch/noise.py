"""Counter-based random numbers of a session: each depends only on the seed, the stream and its position."""

from dataclasses import dataclass

SPEECH = 1
"""The stream of a session's speech codes; the default stream is for text."""
_64_BITS = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_DIGITS = 24
"""Bits of a number: as many as float32 holds, so that it is the same on every device."""


@dataclass
class Noise:
    """Uniform numbers in [0, 1), multiples of 2^-24; `drawn` of them are used up.

    Number i of a seed and stream is always the same (splitmix64).
    """

    seed: int
    stream: int = 0
    """The stream; streams of one seed are independent."""
    drawn: int = 0

    def __post_init__(self) -> None:
        self._key = _mixed(_mixed(self.seed & _64_BITS) + self.stream & _64_BITS)

    def ahead(self, count: int) -> list[float]:
        """Return the next `count` numbers without using them up."""
        key = self._key
        places = range(self.drawn + 1, self.drawn + count + 1)
        return [(_mixed(key + place * _GAMMA & _64_BITS) >> 64 - _DIGITS) / 2**_DIGITS for place in places]

    def use(self, count: int) -> None:
        """Advance the position by `count` numbers."""
        self.drawn += count


def _mixed(bits: int) -> int:
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _64_BITS
    return bits ^ bits >> 31
