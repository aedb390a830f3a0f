"""The catalogue of one session: the pools that it may use."""

from dataclasses import replace
from typing import Final

from ws_adapter.access.rights import Rights
from ws_adapter.protocol.core.config import (
    Capabilities,
    Catalogue,
    ChatSetup,
    Mode,
    Pool,
    TranscriptionSetup,
    WorkerSetup,
)
from ws_adapter.worker.registry import Registry

_DUPLEX: Final = frozenset({Mode.AUDIO, Mode.VIDEO})


class SessionCatalogue:
    """The catalogue of one session: the pools of its mode, within the rights of its key."""

    def __init__(self, registry: Registry, mode: Mode, rights: Rights) -> None:
        self.pool: str | None = None
        """The pool of its slot; None without a slot."""
        self.mode = mode
        """Mode that its worker must serve."""
        self._registry = registry
        self._rights = rights

    @property
    def models(self) -> frozenset[str] | None:
        """The models that its key allows; None allows all."""
        return self._rights.models

    def __call__(self) -> Catalogue | None:
        """Return the current catalogue; None while no worker is known and any model is allowed."""
        known = self._registry.catalogue()
        if known is not None:
            return narrowed(known, self.mode, self._rights, self.pool)
        if self._rights.models is None:
            return None
        return Catalogue(tuple(Pool("", model, Capabilities()) for model in sorted(self._rights.models)))

    def allows(self, setup: WorkerSetup) -> bool:
        """Return whether the key allows the setup for a worker."""
        return self._rights.allows_mode(mode_of(setup)) and self._rights.allows_model(setup.model)


def narrowed(known: Catalogue, mode: Mode | None, rights: Rights, slot: str | None = None) -> Catalogue:
    """Return the pools that these rights allow and that serve `mode`, None for any.

    `slot` is the pool of the session's slot. If no pool serves a full-duplex mode, pools of the other
    full-duplex mode are returned: their workers decide whether they accept video.
    """
    pools = [_within(pool, rights) for pool in known.pools if rights.allows_model(pool.model)]
    transcribes = any(Mode.TRANSCRIPTION in pool.capabilities.modes for pool in pools)
    if mode is not None:
        able = [pool for pool in pools if mode in pool.capabilities.modes]
        if not able and mode in _DUPLEX:
            able = [pool for pool in pools if _DUPLEX & pool.capabilities.modes]
        pools = able
    return Catalogue(tuple(pools), next((pool for pool in pools if pool.name == slot), None), transcribes)


def _within(pool: Pool, rights: Rights) -> Pool:
    if rights.modes is None:
        return pool
    able = pool.capabilities
    return replace(pool, capabilities=replace(able, modes=rights.modes.intersection(able.modes)))


def mode_of(setup: WorkerSetup) -> Mode:
    """Return the mode of a setup."""
    match setup:
        case ChatSetup():
            return Mode.CHAT
        case TranscriptionSetup():
            return Mode.TRANSCRIPTION
    return setup.mode
