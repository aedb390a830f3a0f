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
    """Tokens that close the last unit, until a forward carries them."""
    closing: int = 0
    """How many tokens closed the unit before; they count as input of the next."""
    units: list[int] = field(default_factory=list)
    """Length of each unit kept, oldest first, the tokens that close it included."""
    prompt: int = 0
    _masters: list[Tensor] = field(default_factory=list)
    _unit_start: int = 0
    _before: tuple[int, list[int]] = (0, [])

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

    def restart(self) -> None:
        """Forgets everything, so that the slot begins anew."""
        self.length = self.dropped = self.closing = self.prompt = self._unit_start = 0
        self.pending, self.units, self._masters = [], [], []

    def cut(self, length: int) -> None:
        """Forgets all but the first `length` entries, where no window has dropped any."""
        self.length, self.pending = length, []

    def end_prompt(self, tokens: int | None = None) -> None:
        """The first `tokens`, or everything so far, are the prompt, which the window never drops."""
        self.prompt = self._unit_start = self.length if tokens is None else tokens
        if self.window.mode is WindowMode.BASIC:
            self._masters = self.decoder.cache.snapshot_keys(self.slot, self.prompt)

    def carry(self) -> list[int]:
        """The pending tokens, with which the rows fed next must begin."""
        self._before = self.length, self.pending
        carried, self.pending = self.pending, []
        return carried

    def rewind(self) -> None:
        """Forgets what was fed since `carry`; what that left in the slot is overwritten by what comes."""
        self.length, self.pending = self._before

    def end_unit(self, terminators: list[int]) -> None:
        """Closes a unit; the tokens that close it are carried into the next forward."""
        self.pending += terminators
        self.closing = len(self.pending)
        self.units.append(self.tokens - self._unit_start)
        self._unit_start = self.tokens

    @property
    def must_slide(self) -> bool:
        """Whether the window is to drop units; what is pending must be fed before, as it still sees them."""
        is_over = self.window.mode is WindowMode.BASIC and self.tokens > self.window.high_tokens
        return is_over and len(self.units) > 1

    def slide(self) -> int:
        """Drops whole oldest units, the last one and the prompt never; returns how many."""
        if self.pending or not self.must_slide:
            return 0
        units = tokens = 0
        while self.tokens - tokens > self.window.low_tokens and units < len(self.units) - 1:
            tokens += self.units[units]
            units += 1
        keep_from = self.prompt + tokens
        self.decoder.cache.move(self.slot, keep_from, self.prompt, self.length - keep_from)
        self.length -= tokens
        self._unit_start -= tokens
        self.dropped += tokens
        del self.units[:units]
        rotated = [self.decoder.rotate(keys, self.dropped) for keys in self._masters]
        self.decoder.cache.write_keys(self.slot, rotated)
        return units
