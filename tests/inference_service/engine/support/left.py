"""Checks of the rows that sessions leave behind in a KV cache."""

from inference_service.engine.batch.kvcache import KVCache
from inference_service.engine.batch.pages import PAGE


def is_clean(cache: KVCache) -> bool:
    """Return whether the cache has no context, and written rows only in pages of idle prefixes."""
    pages = cache.pool
    written = (cache.keys.abs() + cache.values.abs()).sum(dim=(0, 1, 3)) != 0
    kept = {page for page in range(pages.pages) if page in pages._names}
    held = {int(row) // PAGE for row in written.nonzero().flatten()}
    return pages.used == 0 and held <= kept and len(kept) == pages.idle
