"""The health service: `https://github.com/grpc/grpc/blob/master/doc/health-checking.md`."""

from typing import Final

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from inference_service.transport.call import Call, Nobody
from inference_service.transport.unary import Unary

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"


class Health:
    """What is said of services, and to those who watch one whenever it changes."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = services
        self._status: int = HealthCheckResponse.NOT_SERVING
        self._watches: set[_Watch] = set()

    def set(self, status: int) -> None:
        """What is said of all services from now on."""
        self._status = status
        for watch in list(self._watches):
            watch.tell(self._of(watch.service))

    def check(self, call: Call) -> None:
        """Answers how a service is, NOT_FOUND for one that is not known."""
        Unary(call, HealthCheckRequest.FromString, lambda request: self._check(call, request.service))

    def watch(self, call: Call) -> None:
        """Answers how a service is, now and after each change, until the caller leaves."""
        Unary(call, HealthCheckRequest.FromString, lambda request: self._watch(call, request.service))

    def _check(self, call: Call, service: str) -> HealthCheckResponse | None:
        if service in self._services:
            return HealthCheckResponse(status=self._status)
        call.end(grpc.StatusCode.NOT_FOUND)
        return None

    def _watch(self, call: Call, service: str) -> None:
        watch = _Watch(call, service, self._watches)
        watch.tell(self._of(service))

    def _of(self, service: str) -> int:
        return self._status if service in self._services else HealthCheckResponse.SERVICE_UNKNOWN


class _Watch(Nobody):
    """A call that is told of changes; of those that it has not read only the last."""

    def __init__(self, call: Call, service: str, watches: set["_Watch"]) -> None:
        self.service = service
        self._call = call
        self._watches = watches
        self._next: int | None = None
        watches.add(self)
        call.take(self)

    def tell(self, status: int) -> None:
        """Now, or as soon as the caller has read what was said before."""
        self._next = status
        self.drained()

    def drained(self) -> None:
        """See `Handler`."""
        if self._next is not None and not self._call.is_busy:
            status, self._next = self._next, None
            self._call.write(HealthCheckResponse(status=status).SerializeToString())

    def given_up(self) -> None:
        """See `Handler`."""
        self._watches.discard(self)
