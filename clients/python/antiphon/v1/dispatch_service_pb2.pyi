from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcquireRequest(_message.Message):
    __slots__ = ("model", "kind", "max_wait")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    kind: str
    max_wait: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., kind: _Optional[str] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("queued", "granted", "revoked")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    queued: QueuePlace
    granted: Lease
    revoked: Revoked
    def __init__(self, queued: _Optional[_Union[QueuePlace, _Mapping]] = ..., granted: _Optional[_Union[Lease, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ...) -> None: ...

class QueuePlace(_message.Message):
    __slots__ = ("ticket_id", "position", "queue_length", "estimated_wait")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    position: int
    queue_length: int
    estimated_wait: _duration_pb2.Duration
    def __init__(self, ticket_id: _Optional[str] = ..., position: _Optional[int] = ..., queue_length: _Optional[int] = ..., estimated_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("target", "token", "worker_id", "slot", "epoch", "pool")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    target: str
    token: str
    worker_id: str
    slot: int
    epoch: int
    pool: str
    def __init__(self, target: _Optional[str] = ..., token: _Optional[str] = ..., worker_id: _Optional[str] = ..., slot: _Optional[int] = ..., epoch: _Optional[int] = ..., pool: _Optional[str] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
