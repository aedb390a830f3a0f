"""The callers' side of a session in the engine: it prepares input and passes on orders in sequence."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from antiphon.contract import Reason
from inference_service.errors import UnitRefused
from inference_service.interface.engine import Failure
from inference_service.interface.setups import Content, UnitOverrides
from inference_service.media.pool import Abandoned, Lane, Priority
from inference_service.session.base.session import Preprocessor, QueuedUnit, UnitQueue

logger = logging.getLogger(__name__)

Order = Callable[[], None]


class OwnedSession(Protocol):
    """A session as the engine holds it."""

    @property
    def id(self) -> str:
        """The session's name in logs."""

    @property
    def queue(self) -> UnitQueue[Any]:
        """The session's units; only the engine's thread may touch them."""

    @property
    def preprocessor(self) -> Preprocessor[Any]:
        """The session's preprocessor; only the media pool may touch it."""


class SessionOwner(Protocol):
    """The engine of a session, which carries out orders on a thread of its own."""

    def order(self, session: Any, order: Order) -> None:
        """Queue an order for a session; an error in it counts as the session's."""

    def close(self, session: Any) -> None:
        """Queue the end of a session."""


class LiveSession:
    """Implements `EngineSession`: orders travel to the engine thread in the order given.

    The input of units is prepared at once or by the media pool, in a lane through which all orders of units
    pass so that they keep their order. A cancel and a close go straight to the engine.
    """

    def __init__(self, engine: SessionOwner, session: OwnedSession, lane: Lane, beside: Lane) -> None:
        """Create the session: `lane` carries its input and orders, `beside` its background jobs."""
        self._engine = engine
        self._session = session
        self._queue = session.queue
        self._lane = lane
        self._beside = beside
        self._closed = False
        session.preprocessor.watch = lane.check

    def prefill(self, unit: int, content: Content) -> None:
        arrival = time.monotonic()
        priority = self._session.preprocessor.priority(content)
        self._lane.submit(priority, lambda: self._prepare(unit, content, arrival))

    def _prepare(self, unit: int, content: Content, arrival: float) -> None:
        try:
            pending = QueuedUnit(unit, self._session.preprocessor.prepare(content), arrival)
        except UnitRefused as refused:
            pending = QueuedUnit(unit, None, arrival, refused.failure)
        except Abandoned:
            return
        except Exception:
            which = {"session_id": self._session.id, "unit": unit}
            logger.exception("the input of a unit could not be prepared", extra=which)
            failure = Failure(Reason.INFERENCE_FAILED, "The worker could not read this unit.")
            pending = QueuedUnit(unit, None, arrival, failure)
        self._engine.order(self._session, lambda: self._queue.prefill(pending))

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        self._follow(lambda: self._queue.generate(unit, force_listen, overrides))

    def reject(self, unit: int, failure: Failure) -> None:
        self._follow(lambda: self._queue.reject(unit, failure))

    def finalize(self, unit: int, *, keep_last_token: bool = False) -> None:
        self._follow(lambda: self._queue.finalize(unit, keep_last_token=keep_last_token))

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        self._follow(lambda: self._queue.rewind(unit, heard_samples))

    def _follow(self, order: Callable[[], None]) -> None:
        self._lane.follow(lambda: self._engine.order(self._session, order))

    def do_beside(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run a job with the priority `STEPS` in the media pool, and pass its result on as an order."""

        def do() -> None:
            made = Future[Any]()
            try:
                made.set_result(job())
            except Exception as error:
                made.set_exception(error)
            self._engine.order(self._session, lambda: then(made.result()))

        self._beside.submit(Priority.STEPS, do)

    def cancel(self, unit: int) -> None:
        self._engine.order(self._session, lambda: self._queue.cancel(unit))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._lane.close()
            self._beside.close()
            self._engine.close(self._session)
