"""Rows to feed to a decoder, as the host holds them: ids, embeddings, and names of embeddings."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NONE = -1
"""Stands for a row without an id."""
_DIGEST = 4
"""Number of integers that hold a SHA-256."""


class Rows:
    """Rows of one context in order: each is the embedding of an id, an embedding of media, or their sum.

    Ids stay on the host until a forward uploads them. Embeddings are not compared: rows have equal `content`
    if their ids and the names of their media are equal.
    """

    __slots__ = ("ids", "is_media", "media", "names")

    def __init__(
        self,
        ids: NDArray[np.int64],
        is_media: NDArray[np.bool_],
        media: Tensor | None,
        names: NDArray[np.int64] | None,
    ) -> None:
        """Create rows: `ids` and `is_media` are [n]; `media` [m, hidden] and `names` [m, 5] are of the
        rows of media.
        """
        self.ids = ids
        self.is_media = is_media
        self.media = media
        self.names = names

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "Rows":
        """Return embeddings of ids."""
        return cls(np.array(ids, np.int64), np.zeros(len(ids), np.bool_), None, None)

    @classmethod
    def of(cls, made: Tensor, name: bytes = b"") -> "Rows":
        """Return rows of media embeddings [n, hidden]; `name` is the SHA-256 of their source, if known."""
        count = made.shape[0]
        names = None
        if name:
            names = np.empty((count, _DIGEST + 1), np.int64)
            names[:, :_DIGEST], names[:, _DIGEST] = np.frombuffer(name, np.int64), np.arange(count)
        return cls(*_of_media(count), made, names)

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Concatenate rows."""
        if len(parts) == 1:
            return parts[0]
        made = [part.media for part in parts if part.media is not None]
        names = [part.names for part in parts if part.media is not None]
        known = [it for it in names if it is not None]
        return cls(
            np.concatenate([part.ids for part in parts]) if parts else np.zeros(0, np.int64),
            np.concatenate([part.is_media for part in parts]) if parts else np.zeros(0, np.bool_),
            (made[0] if len(made) == 1 else torch.cat(made)) if made else None,
            np.concatenate(known) if known and len(known) == len(names) else None,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> "Rows":
        """Return a slice of the rows."""
        begin, end, _ = part.indices(len(self.ids))
        if self.media is None:
            return Rows(self.ids[begin:end], self.is_media[begin:end], None, None)
        first, count = (
            np.count_nonzero(self.is_media[:begin]),
            np.count_nonzero(self.is_media[begin:end]),
        )
        if not count:
            return Rows(self.ids[begin:end], self.is_media[begin:end], None, None)
        names = None if self.names is None else self.names[first : first + count]
        return Rows(self.ids[begin:end], self.is_media[begin:end], self.media[first : first + count], names)

    def plus(self, ids: Sequence[int]) -> "Rows":
        """Return these rows of media with the embedding of an id added to each."""
        return Rows(np.array(ids, np.int64), self.is_media, self.media, self.names)

    @property
    def has_content(self) -> bool:
        """Whether all media in the rows have a name."""
        return self.media is None or self.names is not None

    @property
    def content(self) -> bytes:
        """Return the content of these rows, which must have content."""
        own = self.ids.tobytes() + self.is_media.tobytes()
        return own if self.names is None else own + self.names.tobytes()


@lru_cache(maxsize=256)
def _of_media(count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return ids and flags of `count` rows of media; both are read-only."""
    return np.full(count, _NONE, np.int64), np.ones(count, np.bool_)
