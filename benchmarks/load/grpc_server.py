"""A plain `grpc.aio` server, the floor for measurements of a worker's server."""

from typing import Any

import grpc.aio

from antiphon.contract import MAX_MESSAGE_BYTES


def server(sessions: int) -> "grpc.aio.Server":
    """Return a server for `sessions` sessions, with the message and frame sizes of a worker."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A unit arrives in one HTTP/2 frame. Smaller frames would each wait for flow control.
        ("grpc.http2.lookahead_bytes", 2**17),
        ("grpc.http2.max_frame_size", 2**17),
        ("grpc.max_concurrent_streams", 4 * sessions + 16),
        ("grpc.so_reuseport", 0),
    ]
    return grpc.aio.server(options=options)
