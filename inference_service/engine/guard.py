"""Fault isolation: an error in one session's step ends that session only."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch

from antiphon.contract import Reason
from inference_service.interface.engine import SessionFailed
from inference_service.session.base.session import Session

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Session[Any])
T = TypeVar("T")

_DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "cuDNN error", "HIP error")
_MEMORY_ERRORS = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of memory errors for which torch raises a plain `RuntimeError`."""
_OUT_OF_MEMORY = SessionFailed(Reason.KV_EXHAUSTED, "The worker has not enough memory for this request.")
_FAILED = SessionFailed(Reason.INFERENCE_FAILED, "The worker failed in a step of this session.")


class DeviceLost(Exception):
    """Raised when the device cannot compute any more; the message says what happened."""


class FaultySession(Exception):
    """Raised when a step over several sessions failed in the part of `session`; the cause is the error."""

    def __init__(self, session: object) -> None:
        self.session = session


class blame:
    """Context manager that assigns any error inside to this session, which may be left half done."""

    def __init__(self, session: object) -> None:
        self._session = session

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            raise FaultySession(self._session) from error


class Guard:
    """Runs the steps of a tick; sessions that fail get `SessionFailed` and take no further part.

    Every method raises `DeviceLost` if the device is at fault. `probe` does a minimal computation in the slot
    of a failed session; if that fails too, the device is lost.
    """

    def __init__(self, probe: Callable[[int], None]) -> None:
        self._probe = probe

    def attempt(self, session: Session[Any], step: Callable[..., T], *given: Any) -> T | None:
        """Return the result of a step of this session; None if it failed."""
        try:
            return step(*given)
        except Exception as error:
            self._end(session, error)
            return None

    def run(
        self,
        sessions: list[S],
        step: Callable[[list[S]], object],
        is_pending: Callable[[S], bool] = lambda session: True,
    ) -> None:
        """Run a step of all sessions at once; on failure bisect them until the faulty session fails alone.

        A step that raises must leave all sessions as they were, except one that it `blame`s, and those that
        have made the step and so are no longer pending.
        """
        if not sessions:
            return
        try:
            step(sessions)
            return
        except Exception as error:
            culprit = self._culprit(sessions, error)
        # Outside the handler the traceback is gone, and with it the tensors that the step had allocated.
        rest = [session for session in sessions if session is not culprit and is_pending(session)]
        halves = (rest,) if culprit else (rest[: len(rest) // 2], rest[len(rest) // 2 :])
        for half in halves:
            self.run(half, step, is_pending)

    def together(self, sessions: list[S], step: Callable[[list[S]], Sequence[T]]) -> list[tuple[S, T]]:
        """Run a step that changes no session; return its result for each. Errors are handled as in `run`."""
        given: list[tuple[S, T]] = []
        self.run(sessions, lambda group: given.extend(zip(group, step(group), strict=True)))
        return given

    def _culprit(self, sessions: list[S], error: Exception) -> S | None:
        """Return the session at fault, which is ended; None if it may be any of several."""
        if isinstance(error, FaultySession):
            culprit = next((session for session in sessions if session is error.session), None)
            if culprit is not None:
                self._end(culprit, error.__cause__ or error)
                return culprit
        _require_device(error)
        if len(sessions) > 1:
            return None
        (alone,) = sessions
        try:
            self._probe(alone.slot)
        except Exception:
            raise DeviceLost(_described(error)) from error
        self._end(alone, error)
        return alone

    def _end(self, session: Session[Any], error: BaseException) -> None:
        _require_device(error)
        logger.error("a session failed in the engine", exc_info=error, extra={"session_id": session.id})
        session.fail(_OUT_OF_MEMORY if _is_out_of_memory(error) else _FAILED)


def _require_device(error: BaseException) -> None:
    if isinstance(error, DeviceLost):
        raise error
    if isinstance(error, FaultySession):
        error = error.__cause__ or error
    if _is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return
    if isinstance(error, torch.AcceleratorError) or str(error).startswith(_DEVICE_ERRORS):
        raise DeviceLost(_described(error)) from error


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_ERRORS)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
