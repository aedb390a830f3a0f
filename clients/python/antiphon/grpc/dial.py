"""Channels to workers and dispatchers."""

import grpc
import grpc.aio

from antiphon.contract import CLIENT_OPTIONS


def open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Open a channel to the worker or dispatcher at `target`, without TLS if `credentials` is None."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=CLIENT_OPTIONS)
