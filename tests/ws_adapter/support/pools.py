"""Catalogues for tests of machines."""

from collections.abc import Iterable, Set
from typing import Any

from antiphon_service.pools import pool_name
from ws_adapter.protocol.core.config import Capabilities, Catalogue, Pool


def pool(model: str = "antiphon-mini", voices: Set[str] = frozenset(), **capabilities: Any) -> Pool:
    """A pool of workers with this model; its chats take no tools unless `calls_tools` says so."""
    able = Capabilities(**{"voices": voices, "calls_tools": False, **capabilities})
    return Pool(pool_name(model, able.modes), model, able)


def catalogue(
    models: Iterable[str] = ("antiphon-mini",), voices: Set[str] = frozenset(), **capabilities: Any
) -> Catalogue:
    """One pool for each model, all of which can do the same."""
    return Catalogue(tuple(pool(model, voices, **capabilities) for model in sorted(models)))
