"""The paged KV cache: keys and values of all sessions in pages of rows, and the page table of each slot."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig

from inference_service.device.transfer import download, upload
from inference_service.engine.batch.pages import PAGE, PagePool, slot_pages

Run = tuple[int, int]
"""First row and number of rows of a contiguous run in the cache."""


@dataclass
class _Table:
    """The pages of one slot in the order of its entries."""

    pages: list[int] = field(default_factory=list)
    offset: int = 0
    """Rows of the first page before entry 0."""
    _runs: list[Run] = field(default_factory=list)

    def append(self, page: int) -> None:
        """Append a page."""
        self.pages.append(page)
        row = page * PAGE
        if self._runs and sum(self._runs[-1]) == row:
            self._runs[-1] = self._runs[-1][0], self._runs[-1][1] + PAGE
        else:
            self._runs.append((row, PAGE))

    def replace(self, pages: list[int]) -> None:
        """Replace all pages."""
        self.pages, self._runs = [], []
        for page in pages:
            self.append(page)

    def runs(self, start: int, end: int) -> list[Run]:
        """Return the runs of rows with entries `start` to `end`."""
        found, skip, left = list[Run](), start + self.offset, end - start
        for row, count in self._runs:
            taken = min(count - skip, left)
            if taken > 0:
                found.append((row + skip, taken))
                left -= taken
            skip = max(0, skip - count)
        return found


class KVCache:
    """`keys` and `values` are [layers, kv heads, rows, head size], page after page.

    Each slot has at most `capacity` entries. Pages for them are always available, whatever other slots
    and the prefix cache hold. No entry is written to a shared page.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        spare: int = 0,
        aligned: bool = False,
    ) -> None:
        """Allocate the cache.

        The `spare` pages at the end belong to no slot: padding rows of a step are written there. In an
        `aligned` cache, entry 0 of a slot is always the first row of a page, so `drop` may copy.
        """
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.slots = slots
        self._aligned = aligned
        self.capacity = capacity
        self.pool = PagePool(slots * slot_pages(capacity))
        shape = (config.num_hidden_layers, config.num_key_value_heads, (self.pool.pages + spare) * PAGE, head)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.adopted_rows = 0
        """Entries that contexts have adopted from the prefix cache so far."""
        self.shared: set[bytes] = set()
        """Names of pages that sessions of every tenant may find."""
        self._tables = [_Table() for _ in range(slots)]
        self._owners = [b""] * slots
        """The salt of each slot's latest tenant."""

    def share(self, names: Iterable[bytes]) -> None:
        """Let sessions of every tenant find the pages of these names. Must be called before the first
        session.
        """
        self.shared.update(names)

    def assign(self, slot: int, owner: bytes) -> None:
        """Make the tenant of this salt the owner of the pages that the slot takes and publishes
        from now on.
        """
        self._owners[slot] = owner

    def forget(self, owner: bytes) -> None:
        """Evict every idle page of a tenant that will not return."""
        self._wipe(self.pool.forget(owner))

    @property
    def device(self) -> torch.device:
        """The device of the cache."""
        return self.keys.device

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.keys.nbytes + self.values.nbytes

    # ------------------------------------------------------------------------------------------- entries

    def runs(self, slot: int, start: int, end: int) -> list[Run]:
        """Return the runs of rows with entries `start` to `end` of a slot."""
        return self._tables[slot].runs(start, end)

    def pages(self, slot: int, end: int) -> tuple[list[int], int]:
        """Return the pages with the first `end` entries of a slot, and the rows of the first page before
        entry 0.
        """
        table = self._tables[slot]
        return table.pages[: -(-(table.offset + end) // PAGE)], table.offset

    def cut(self, slot: int, end: int) -> None:
        """Zero the entries from `end` on, so that none is read together with entries written later."""
        table = self._tables[slot]
        first, skip = divmod(end + table.offset, PAGE)
        for page in table.pages[first:]:
            if self.pool.is_private(page):
                for part in self.rows(page * PAGE + skip, PAGE - skip):
                    part.zero_()
            skip = 0

    def cells(self, slot: int, start: int, end: int) -> NDArray[np.int64]:
        """Return the cache rows of entries `start` to `end` of a slot."""
        runs = self.runs(slot, start, end)
        return np.concatenate([np.arange(row, row + n, dtype=np.int64) for row, n in runs])

    def held(self, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Copy a slot's keys and values `start` to `end`, each [layers, kv heads, n, head size]."""
        runs = self.runs(slot, start, end) or [(0, 0)]
        keys, values = zip(*(self.rows(*run) for run in runs), strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)

    def rows(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return views of the keys and values of one run of rows, each [layers, kv heads, n, head size]."""
        return self.keys.narrow(2, first, count), self.values.narrow(2, first, count)

    def reserve(self, slot: int, start: int, end: int) -> None:
        """Reserve entries `start` to `end` for writing. Raises `IndexError` beyond the capacity."""
        if end > self.capacity:
            raise IndexError(f"a slot has {self.capacity} entries, not {end}")
        table = self._tables[slot]
        first, last = (start + table.offset) // PAGE, -(-(end + table.offset) // PAGE)
        self._own(slot, first, min(last, len(table.pages)))
        while len(table.pages) < last:
            table.append(self._take(slot, table.pages[-1] + 1 if table.pages else None))

    def write(self, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Overwrite entries from `start` on; keys and values are [layers, kv heads, n, head size]."""
        end, done = start + keys.shape[2], 0
        self.reserve(slot, start, end)
        for row, count in self.runs(slot, start, end):
            for part, given in zip(self.rows(row, count), (keys, values), strict=True):
                part.copy_(given.narrow(2, done, count))
            done += count

    def drop(self, slot: int, count: int) -> None:
        """Drop the first `count` entries, so that the next one is entry 0; a negative `count` adds
        empty entries before entry 0.

        Whole pages are freed; only an aligned cache moves entries.
        """
        table = self._tables[slot]
        pages, table.offset = divmod(table.offset + count, PAGE)
        if pages > 0:
            self._release(table.pages[:pages])
            table.replace(table.pages[pages:])
        for _ in range(-pages):
            table.replace([self._take(slot, max(0, table.pages[0] - 1)), *table.pages])
        if self._aligned and table.offset:
            self._align(slot)

    def _align(self, slot: int) -> None:
        """Move a slot's entries to the start of its first page, layer by layer to save memory."""
        table = self._tables[slot]
        offset, table.offset = table.offset, 0
        if not table.pages:
            return
        self._own(slot, 0, len(table.pages))
        rows = np.concatenate([np.arange(PAGE, dtype=np.int64) + page * PAGE for page in table.pages])
        source, target = upload(self.device, rows[offset:], rows[:-offset])
        for slab in (self.keys, self.values):
            for layer in slab.unbind():
                layer.index_copy_(1, target, layer.index_select(1, source))
        for part in self.rows((table.pages[-1] + 1) * PAGE - offset, offset):
            part.zero_()

    def clear(self, slot: int) -> None:
        """Drop all entries of a slot; zero those that are not a published prefix."""
        table, self._tables[slot] = self._tables[slot], _Table()
        # The first page last, so that it is evicted last: later pages are found through it.
        self._release(reversed(table.pages))

    # ------------------------------------------------------------------------------------------ prefixes

    def adopt(self, slot: int, page: int, name: bytes) -> bool:
        """Append the page of that name to the slot as page `page`; return False if there is none."""
        table, found = self._tables[slot], self.pool.find(name)
        if found is None:
            return False
        if page < len(table.pages):
            self._release(table.pages[page:])
            table.replace(table.pages[:page])
        table.append(found)
        return True

    def publish(self, slot: int, first: int, names: list[bytes]) -> None:
        """Publish the slot's full pages from `first` on under `names`, except pages with NaN or infinity."""
        numbers = self._tables[slot].pages[first : first + len(names)]
        if not numbers:
            return
        # The sum is not finite if an entry is not, or if it overflows; such a page must not be shared.
        parts = [part for number in numbers for part in self.rows(number * PAGE, PAGE)]
        (sums,) = download(torch.stack([part.sum(dtype=torch.float32) for part in parts]))
        for number, name, sound in zip(numbers, names, np.isfinite(sums).reshape(-1, 2), strict=True):
            if sound.all():
                self.pool.publish(number, name, b"" if name in self.shared else self._owners[slot])

    # --------------------------------------------------------------------------------------------- pages

    def _take(self, slot: int, near: int | None) -> int:
        near = slot * slot_pages(self.capacity) if near is None else near
        page, evicted = self.pool.take(near, self._owners[slot])
        self._wipe(evicted)
        return page

    def _release(self, pages: Iterable[int]) -> None:
        self._wipe(self.pool.release(pages))

    def _own(self, slot: int, first: int, last: int) -> None:
        """Copy those of a slot's pages `first` to `last` that are shared, before they are written to."""
        table = self._tables[slot]
        for index in range(first, last):
            if not self.pool.is_private(table.pages[index]):
                self._copy(slot, index)

    def _copy(self, slot: int, index: int) -> None:
        """Give the slot its own copy of a shared page (copy-on-write)."""
        table = self._tables[slot]
        old = table.pages[index]
        kept = [part.clone() for part in self.rows(old * PAGE, PAGE)]
        self._release([old])  # first, because the pool may have no other page
        page, evicted = self.pool.take(old + 1, self._owners[slot])
        self._wipe(evicted)
        for part, rows in zip(self.rows(page * PAGE, PAGE), kept, strict=True):
            part.copy_(rows)
        table.replace([*table.pages[:index], page, *table.pages[index + 1 :]])

    def _wipe(self, pages: list[int]) -> None:
        """Zero free pages."""
        for begin, count in _stretches(sorted(pages)):
            for part in self.rows(begin * PAGE, count * PAGE):
                part.zero_()


def _stretches(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first page and the length of each contiguous stretch of pages."""
    begin = 0
    for i in range(1, len(pages) + 1):
        if i == len(pages) or pages[i] != pages[i - 1] + 1:
            yield pages[begin], i - begin
            begin = i
