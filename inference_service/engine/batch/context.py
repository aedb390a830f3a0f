"""The language context of one session: its KV slot, the rows to feed, and its sliding window."""

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
    """Words of dropped units, as ids after the first `fixed` tokens of the prompt.

    `marker` stands before them. `closing`, the end of the prompt, follows them.
    """

    marker: list[int]
    closing: list[int]
    fixed: int
    ids: list[int] = field(default_factory=list)

    def take(self, said: list[int], most: int) -> None:
        """Add the words of dropped units; keep the newest `most` ids."""
        self.ids = [*self.ids, *said][-most:]

    @property
    def tail(self) -> list[int]:
        """Return all ids between the fixed tokens and the first unit."""
        return [*self.marker, *self.ids, *self.closing]


@dataclass
class _Masters:
    """Keys, in float32, and values of a part of the prompt, [layers, kv heads, n, head size]."""

    start: int
    keys: Tensor
    values: Tensor
    offset: int
    """The number of positions by which the keys had been rotated."""


@dataclass
class Context:
    """Bookkeeping over one KV slot.

    Positions only grow. When the window drops units, the kept ones stay where they are. The protected prompt
    is written before them, rotated forward by all tokens dropped so far, from float32 masters of its keys.
    Attention depends only on differences of positions, so nothing drifts. A window with memory feeds the end
    of the prompt again, with the words of the dropped units.
    """

    decoder: PackedDecoder
    slot: int
    window: Window
    limit: int
    """Limit of tokens without a window."""
    tenant: Tenant = COMMON
    """The tenant; it alone finds this context's pages in the prefix cache."""
    length: int = 0
    """Entries in the KV slot."""
    dropped: int = 0
    """Tokens that the window has dropped so far."""
    pending: list[int] = field(default_factory=list)
    """Tokens that close the last unit, until the next forward takes them."""
    closing: int = 0
    """The number of tokens that closed the previous unit; they count as input of the next."""
    units: list[int] = field(default_factory=list)
    """Length of each kept unit, oldest first, its closing tokens included."""
    prompt: int = 0
    memory: Memory | None = None
    """The memory of a window that keeps the words of dropped units."""
    to_rebuild: list[int] = field(default_factory=list)
    """Ids at the end of the prompt that must be fed again before anything else."""
    found: int = 0
    """Entries that were found in the prefix cache, and so not fed."""
    _prefix: Prefix | None = None
    """The prefix so far, as long as all rows belong to it."""
    _feeding: Rows | None = None
    _said: list[list[int]] = field(default_factory=list)
    """Words of each kept unit."""
    _masters: list[_Masters] = field(default_factory=list)
    _unit_start: int = 0
    _before: tuple[int, list[int]] = (0, [])

    def __post_init__(self) -> None:
        """Assign the slot to the tenant, whose own idle pages are evicted before those of other tenants."""
        self.decoder.cache.assign(self.slot, self.tenant.salt)

    @property
    def tokens(self) -> int:
        """Length of the context, waiting tokens included."""
        return self.length + len(self.pending)

    @property
    def free(self) -> int:
        """Tokens that the slot can still take."""
        return self.decoder.cache.capacity - self.tokens

    def has_room_for(self, tokens: int) -> bool:
        """Return whether the context may grow by `tokens`; always true with a window."""
        return self.slides or self.tokens + tokens <= self.limit

    @property
    def slides(self) -> bool:
        """Whether the context has a window."""
        return self.window.mode is not WindowMode.OFF

    def begin(self, rows: Rows) -> Rows:
        """Return the part of `rows` to feed; `rows` begin this context or continue its beginning.

        Rows in the prefix cache are adopted, except the last one, whose hidden state is needed.
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
        """Publish the finished beginning of this context in the prefix cache."""
        if self._prefix is not None:
            self._prefix.publish()

    def segment(self, rows: Rows) -> Segment:
        """Return the next rows of this context as a segment; call `advance` once they have been run."""
        self._feeding = rows if self._prefix else None
        return Segment(self.slot, self.length, self.length + self.dropped, rows)

    def advance(self, count: int) -> None:
        """Note that `count` rows are in the slot, and valid."""
        self.length += count
        if self._prefix is not None and self._feeding is not None:
            self._prefix.fed(self._feeding[:count])
            self._feeding = None

    def restart(self) -> None:
        """Clear the context, so that the slot begins anew."""
        self.decoder.cache.clear(self.slot)
        self.length = self.dropped = self.closing = self.prompt = self._unit_start = self.found = 0
        self.pending, self.units, self._said, self._masters = [], [], [], []
        self._prefix = self._feeding = None

    def cut(self, length: int) -> None:
        """Drop all but the first `length` entries; only for a context whose window has dropped none."""
        self.length, self.pending, self._prefix = length, [], None
        self.decoder.cache.cut(self.slot, length)

    def end_prompt(self, tokens: int | None = None) -> None:
        """Mark the first `tokens`, or all so far, as the prompt, which the window never drops.

        Later rows are not published in the prefix cache.
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
        """Return the pending tokens, with which the next rows must begin."""
        self._before = self.length, self.pending
        carried, self.pending = self.pending, []
        return carried

    def rewind(self) -> None:
        """Drop the rows that were fed since `carry`."""
        self.length, self.pending = self._before
        self._prefix = None
        self.decoder.cache.cut(self.slot, self.length)

    def take_back(self, index: int, entries: int, terminators: list[int]) -> None:
        """Keep the units before `index` and the first `entries` entries of the unit `index`, and close it."""
        self._unit_start = self.prompt + sum(self.units[:index])
        self.length, self.pending = self._unit_start + entries, []
        self.decoder.cache.cut(self.slot, self.length)
        del self.units[index:], self._said[index:]
        self.end_unit(terminators)

    def heard_again(self, lengths: Sequence[int], terminators: list[int]) -> None:
        """Add silent units that were fed with terminators between them, and close the last one."""
        for length in lengths[:-1]:
            self.units.append(length + len(terminators))
            self._said.append([])
            self._unit_start += self.units[-1]
        self.end_unit(terminators)

    def end_unit(self, terminators: list[int], said: Sequence[int] = ()) -> None:
        """Close a unit with the words `said`; the next forward takes its closing tokens."""
        self.pending += terminators
        self.closing = len(self.pending)
        self.units.append(self.tokens - self._unit_start)
        self._said.append(list(said))
        self._unit_start = self.tokens

    @property
    def must_slide(self) -> bool:
        """Whether the window must drop units; pending tokens must be fed first, since they still attend to
        these units.
        """
        return self.slides and self._surplus() > 0

    def _surplus(self) -> int:
        """Return the number of oldest units to drop; never the last one."""
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
        """Drop the oldest units, never the last one or the prompt; return their number.

        If `to_rebuild` then holds ids, `rebuild` must be fed next.
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
        """Queue the end of the prompt again if the dropped units held words."""
        said = [token for unit in dropped for token in unit]
        if self.memory is None or not said:
            return
        self.memory.take(said, self.window.remembered_tokens)
        self.to_rebuild = self.memory.tail
        self.prompt = self.memory.fixed + len(self.to_rebuild)
        self._masters = self._masters[:1]

    def rebuild(self) -> Segment:
        """Return the rows of `to_rebuild`; call `end_rebuild` once they have been run."""
        start = self.prompt - len(self.to_rebuild)
        return Segment(self.slot, start, start + self.dropped, Rows.of_ids(self.to_rebuild))

    def end_rebuild(self) -> None:
        """Note that the end of the prompt is in the slot."""
        self.to_rebuild = []
        assert self.memory is not None
        self._masters.append(self._snapshot(self.memory.fixed, self.prompt))
