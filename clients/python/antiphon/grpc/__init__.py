"""Direct access to a worker: its three gRPC streams as one object.

It is meant for services in the same cluster; other programs connect to the WebSocket server with
`antiphon.connect`.
"""

from antiphon.grpc.acquire import Lease, Place, acquire
from antiphon.grpc.info import get_info
from antiphon.grpc.journal import Journal
from antiphon.grpc.outputs import (
    Audio,
    CallDelta,
    Finalized,
    Finish,
    GoAway,
    Output,
    Prefilled,
    Ready,
    Text,
    Thinking,
    UnitDone,
    UnitEnd,
    UnitError,
)
from antiphon.grpc.session import Session

__all__ = [
    "Audio",
    "CallDelta",
    "Finalized",
    "Finish",
    "GoAway",
    "Journal",
    "Lease",
    "Output",
    "Place",
    "Prefilled",
    "Ready",
    "Session",
    "Text",
    "Thinking",
    "UnitDone",
    "UnitEnd",
    "UnitError",
    "acquire",
    "get_info",
]
