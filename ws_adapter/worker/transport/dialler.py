"""Who speaks gRPC with a worker: our own client, or grpcio."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from antiphon.http2.byte_count import ByteCount
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.native_channel import NativeChannel
from ws_adapter.worker.transport.tls import WorkerTls

WorkerTransport: TypeAlias = Literal["auto", "native", "grpcio"]
"""`auto` is native wherever a worker is: the same tests prove the same rules for both."""

Dial: TypeAlias = Callable[[str, Callable[[], None]], Channel]
"""Makes a channel to a target, and has it tell when it loses a connection."""


def dialler(
    transport: WorkerTransport = "auto", tls: WorkerTls | None = None, byte_count: ByteCount | None = None
) -> Dial:
    """Channels that use `tls`, if there is one, wherever the target is no Unix socket.

    The bytes of all are counted in `byte_count`: natively those of the connections, with grpcio those of the
    messages.
    """
    counted = byte_count or ByteCount()
    if transport != "grpcio":
        return lambda target, on_lost: NativeChannel(target, on_lost, counted, tls)
    # Not loaded where it is not asked for: it takes 20 MB and has threads of its own.
    from ws_adapter.worker.transport.grpcio_channel import GrpcioChannel

    return lambda target, on_lost: GrpcioChannel(target, on_lost, counted, tls)
