"""What gRPC says over HTTP/2: `https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md`."""

import re
import struct
from typing import Final

ALPN: Final = "h2"
"""What is agreed on over TLS."""

CONTENT_TYPE: Final = "application/grpc"

PREFIX: Final = struct.Struct("!BL")
"""Before each message: whether it is compressed, and its size."""

_TYPES: Final = re.compile(re.escape(CONTENT_TYPE) + r"($|[+;])", re.IGNORECASE)


def is_grpc(content_type: str) -> bool:
    """Whether such content is that of a call."""
    return _TYPES.match(content_type) is not None
