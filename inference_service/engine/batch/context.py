"""The language context of one session: what is in its KV slot, what is still to be fed, and its window."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.prefix import Prefix
from inference_service.interface.setups import (
    COMMON,
    Tenant,
    Window,
    WindowMode,
)


@dataclass
class Memory:
    """Words of dropped units, as ids behind the first `fixed` tokens of the prompt.

    `marker` stands before them and `closing`, the end of the prompt, behind them.
    """

    marker: list[int]
    closing: list[int]
    fixed: int
    ids: list[int] = field(default_factory=list)

    def take(self, said: list[int], most: int) -> None:
        """More was dropped; the newest `most` ids stay."""
        self.ids = [*self.ids, *said][-most:]

    @property
    def tail(self) -> list[int]:
        """All that stands between the fixed tokens and the first unit."""
        return [*self.marker, *self.ids, *self.closing]


@dataclass
class _Masters:
    """Keys, in float32, and values of a part of the prompt, [layers, kv heads, n, head size]."""

    start: int
    keys: Tensor
    values: Tensor
    offset: int
    """How far the keys had been rotated."""


@dataclass
class Context:
    """Bookkeeping over one KV slot.

    Positions only grow. When the window drops units, the kept ones stay where they are, and the protected
    prompt is written before them, rotated forward by all tokens dropped so far, from float32 masters of its
    keys: attention sees only differences of positions, so nothing drifts. A window that remembers feeds the
    end of the prompt again, with what was said in the units that it dropped.
    """

    decoder: PackedDecoder
    slot: int
    window: Window
    limit: int
    """Most tokens, where no window makes room."""
    tenant: Tenant = COMMON
    """Pages of the prefix cache are found by contexts of the same tenant alone."""
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
    memory: Memory | None = None
    """Of a window that remembers."""
    rebuilt: list[int] = field(default_factory=list)
    """Ids at the end of the prompt that must be fed again before anything else."""
    found: int = 0
    """Entries that were not fed, as another context had them."""
    _prefix: Prefix | None = None
    """Its beginning, while all that is fed belongs to that."""
    _feeding: Rows | None = None
    _said: list[list[int]] = field(default_factory=list)
    """What was said in each unit kept."""
    _masters: list[_Masters] = field(default_factory=list)
    _unit_start: int = 0
    _before: tuple[int, list[int]] = (0, [])

    def __post_init__(self) -> None:
        """Take the slot for the tenant, whose idle pages are evicted before those of others."""
        self.decoder.cache.assign(self.slot, self.tenant.salt)

    @property
    def tokens(self) -> int:
        """Length of the context, tokens not yet fed included."""
        return self.length + len(self.pending)

    @property
    def free(self) -> int:
        """Tokens that the slot can still take."""
        return self.decoder.cache.capacity - self.tokens

    def has_room_for(self, tokens: int) -> bool:
        """Return whether the context may grow by `tokens`. A window always makes room."""
        return self.slides or self.tokens + tokens <= self.limit

    @property
    def slides(self) -> bool:
        """Whether it has a window."""
        return self.window.mode is not WindowMode.OFF

    def begin(self, rows: Rows) -> Rows:
        """Return what must be fed of `rows`, which this context begins with or goes on beginning with.

        What other contexts began with is taken over, but for the last row, whose hidden state is needed.
        """
        if self.length == 0:
            self._prefix = Prefix(self.decoder.cache, self.slot, self.tenant.salt)
        if self._prefix is None:
            return rows
        found = self._prefix.find(rows)
        self.length += found
        self.found += found
        self.decoder.cache.adopted_rows += found
        return rows[found:]

    def publish(self) -> None:
        """Publish the finished beginning of this context for other contexts."""
        if self._prefix is not None:
            self._prefix.publish()

    def segment(self, rows: Rows) -> Segment:
        """Return the next rows of this context; call `advance` once they have been run."""
        self._feeding = rows if self._prefix else None
        return Segment(self.slot, self.length, self.length + self.dropped, rows)

    def advance(self, count: int) -> None:
        """`count` rows are in the slot now, and sound."""
        self.length += count
        if self._prefix is not None and self._feeding is not None:
            self._prefix.fed(self._feeding[:count])
            self._feeding = None

    def restart(self) -> None:
        """Forget everything, so that the slot begins anew."""
        self.decoder.cache.clear(self.slot)
        self.length = self.dropped = self.closing = self.prompt = self._unit_start = self.found = 0
        self.pending, self.units, self._said, self._masters = [], [], [], []
        self._prefix = self._feeding = None

    def cut(self, length: int) -> None:
        """Forget all but the first `length` entries, where no window has dropped any."""
        self.length, self.pending, self._prefix = length, [], None
        self.decoder.cache.cut(self.slot, length)

    def end_prompt(self, tokens: int | None = None) -> None:
        """Mark the first `tokens`, or everything so far, as the prompt, which the window never drops.

        What is fed from now on is nothing that others begin with.
        """
        self.publish()
        self._prefix = None
        self.prompt = self._unit_start = self.length if tokens is None else tokens
        if self.slides:
            fixed = self.memory.fixed if self.memory else self.prompt
            self._masters = [self._snapshot(0, fixed)]
            if fixed < self.prompt:
                self._masters.append(self._snapshot(fixed, self.prompt))

    def _snapshot(self, start: int, end: int) -> _Masters:
        keys, values = self.decoder.cache.held(self.slot, start, end)
        return _Masters(start, keys.float(), values, self.dropped)

    def carry(self) -> list[int]:
        """Return the pending tokens, with which the rows fed next must begin."""
        self._before = self.length, self.pending
        carried, self.pending = self.pending, []
        return carried

    def rewind(self) -> None:
        """Forget what was fed since `carry`."""
        self.length, self.pending = self._before
        self._prefix = None
        self.decoder.cache.cut(self.slot, self.length)

    def take_back(self, index: int, entries: int, terminators: list[int]) -> None:
        """Keep the units before `index`, and `entries` of that one, closed."""
        self._unit_start = self.prompt + sum(self.units[:index])
        self.length, self.pending = self._unit_start + entries, []
        self.decoder.cache.cut(self.slot, self.length)
        del self.units[index:], self._said[index:]
        self.end_unit(terminators)

    def heard_again(self, lengths: Sequence[int], terminators: list[int]) -> None:
        """Silent units have been fed, one behind the other's terminators; the last is to be closed."""
        for length in lengths[:-1]:
            self.units.append(length + len(terminators))
            self._said.append([])
            self._unit_start += self.units[-1]
        self.end_unit(terminators)

    def end_unit(self, terminators: list[int], said: Sequence[int] = ()) -> None:
        """Close a unit in which `said` was said; what closes it is carried into the next forward."""
        self.pending += terminators
        self.closing = len(self.pending)
        self.units.append(self.tokens - self._unit_start)
        self._said.append(list(said))
        self._unit_start = self.tokens

    @property
    def must_slide(self) -> bool:
        """Whether the window is to drop units; what is pending must be fed before, as it still sees them."""
        return self.slides and self._surplus() > 0

    def _surplus(self) -> int:
        """Return how many of the oldest units are to be dropped; never the last one."""
        window, most = self.window, len(self.units) - 1
        over = len(self.units) - window.max_units if window.mode is WindowMode.CONTEXT else 0
        count, tokens = max(0, min(over, most)), self.tokens
        if tokens > window.high_tokens:
            tokens -= sum(self.units[:count])
            while tokens > window.low_tokens and count < most:
                tokens -= self.units[count]
                count += 1
        return count

    def slide(self) -> int:
        """Drop whole oldest units, the last one and the prompt never; return how many.

        If there are ids in `rebuilt` afterwards, `rebuild` must be fed next.
        """
        units = self._surplus() if self.slides and not self.pending else 0
        if not units:
            return 0
        keep_from = self.prompt + sum(self.units[:units])
        position = keep_from + self.dropped
        self._remember(self._said[:units])
        self.decoder.cache.drop(self.slot, keep_from - self.prompt)
        self.length = self._unit_start = self.prompt + self.length - keep_from
        self.dropped = position - self.prompt
        del self.units[:units], self._said[:units]
        for masters in self._masters:
            turned = self.decoder.rotate(masters.keys, self.dropped - masters.offset)
            self.decoder.cache.write(self.slot, masters.start, turned, masters.values)
        return units

    def _remember(self, dropped: list[list[int]]) -> None:
        """Feed the end of the prompt again if anything was said in the dropped units."""
        said = [token for unit in dropped for token in unit]
        if self.memory is None or not said:
            return
        self.memory.take(said, self.window.remembered_tokens)
        self.rebuilt = self.memory.tail
        self.prompt = self.memory.fixed + len(self.rebuilt)
        self._masters = self._masters[:1]

    def rebuild(self) -> Segment:
        """Return the rows of `rebuilt`; call `end_rebuild` once they have been run."""
        start = self.prompt - len(self.rebuilt)
        return Segment(self.slot, start, start + self.dropped, Rows.of_ids(self.rebuilt))

    def end_rebuild(self) -> None:
        """Note that the end of the prompt is in the slot."""
        self.rebuilt = []
        assert self.memory is not None
        self._masters.append(self._snapshot(self.memory.fixed, self.prompt))
