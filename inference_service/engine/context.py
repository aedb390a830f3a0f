"""The language context of one session: what is in its KV slot, what is still to be fed, and its window."""

from dataclasses import dataclass, field

from torch import Tensor

from inference_service.engine.api import Window, WindowMode
from inference_service.engine.decoder import PackedDecoder, Segment


@dataclass
class Context:
    """Bookkeeping over one KV slot.

    Positions only grow. When the window drops units, the kept ones move down in the slot but keep
    their positions, and the protected prompt is rotated forward by all tokens dropped so far, from
    float32 masters of its keys: attention sees only differences of positions, so nothing drifts.
    """

    decoder: PackedDecoder
    slot: int
    window: Window
    limit: int
    """Most tokens, where no window makes room."""
    length: int = 0
    """Entries in the KV slot."""
    dropped: int = 0
    """Tokens that the window has dropped so far."""
    pending: list[int] = field(default_factory=list)
    """Terminator tokens that the next forward will carry."""
    units: list[int] = field(default_factory=list)
    """Length of each unit kept, oldest first, carried tokens included."""
    prompt: int = 0
    _masters: list[Tensor] = field(default_factory=list)
    _unit_start: int = 0
    _before_unit: tuple[int, list[int]] = (0, [])

    @property
    def tokens(self) -> int:
        """Length of the context, tokens not yet fed included."""
        return self.length + len(self.pending)

    @property
    def free(self) -> int:
        """Tokens that the slot can still take."""
        return self.decoder.cache.capacity - self.tokens

    def has_room_for(self, tokens: int) -> bool:
        """Whether the context may grow by `tokens`. A window always makes room."""
        return self.window.mode is WindowMode.BASIC or self.tokens + tokens <= self.limit

    def segment(self, embeds: Tensor) -> Segment:
        """The next rows of this context; call `advance` once they have been run."""
        return Segment(self.slot, self.length, self.length + self.dropped, embeds)

    def advance(self, count: int) -> None:
        """`count` rows are in the slot now."""
        self.length += count

    def end_prompt(self) -> None:
        """Everything so far is the prompt, which the window never drops."""
        self.prompt = self._unit_start = self.length
        if self.window.mode is WindowMode.BASIC:
            self._masters = self.decoder.cache.snapshot_keys(self.slot, self.prompt)

    def begin_unit(self) -> list[int]:
        """The carried tokens, with which the rows of the unit that begins must start."""
        self._before_unit = self.length, self.pending
        carried, self.pending = self.pending, []
        return carried

    def rewind(self) -> None:
        """Forgets the unit under way, as if it had never begun; what it left in the slot is overwritten."""
        self.length, self.pending = self._before_unit

    def end_unit(self, terminators: list[int]) -> int:
        """Closes a unit whose last tokens are carried over; returns how many old units were dropped."""
        self.pending += terminators
        self.units.append(self.tokens - self._unit_start)
        self._unit_start = self.tokens
        return self._slide() if self.window.mode is WindowMode.BASIC else 0

    def _slide(self) -> int:
        if self.tokens <= self.window.high_tokens:
            return 0
        units = tokens = 0
        while self.tokens - tokens > self.window.low_tokens and units < len(self.units) - 1:
            tokens += self.units[units]
            units += 1
        if units == 0:
            return 0
        keep_from = self.prompt + tokens
        self.decoder.cache.move(self.slot, keep_from, self.prompt, self.length - keep_from)
        self.length -= tokens
        self._unit_start -= tokens
        self.dropped += tokens
        del self.units[:units]
        rotated = [self.decoder.rotate(keys, self.dropped) for keys in self._masters]
        self.decoder.cache.write_keys(self.slot, rotated)
        return units
