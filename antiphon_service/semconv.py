"""Names of spans, attributes and metrics of both services (semantic conventions).

The module has only constants, each with its meaning, and imports only the standard library. No other module
spells such a name. A minor release may remove a name; the changelog says so.
"""

from enum import StrEnum
from typing import Final, NamedTuple

# ----------------------------------------------------------------------------------------------- spans

SERVICE_ADAPTER: Final = "antiphon-adapter"
"""`service.name` of the WebSocket adapter."""

SERVICE_WORKER: Final = "antiphon-worker"
"""`service.name` of the gRPC worker."""

SPAN_UPGRADE: Final = "ws.upgrade"
"""The adapter's span of the handshake: from the HTTP request to an open or rejected WebSocket."""

SPAN_QUEUE: Final = "session.queue"
"""The adapter's span of the wait in the queue, until a slot is granted or the wait ends without one."""

SPAN_START: Final = "session.start"
"""The adapter's span from a granted slot to a session that accepts input.

The spans of units, turns and the end link to it.
"""

SPAN_UNIT: Final = "unit"
"""The adapter's span of one unit, chat turn or transcription chunk, from its input to its last answer."""

SPAN_TURN: Final = "turn"
"""The adapter's span of one turn of the model; it links to the turn's units."""

SPAN_FAILOVER: Final = "session.failover"
"""The adapter's span from the loss of a worker until another one takes over, or the session ends."""

SPAN_END: Final = "session.end"
"""The adapter's span of a session's end, with its totals."""

SPAN_PREFILL: Final = "prefill"
"""The worker's span in which the input of a unit becomes part of the context."""

SPAN_GENERATE: Final = "generate"
"""The worker's span from the first decoding step of a unit to its last."""

SPAN_FINALIZE: Final = "finalize"
"""The worker's span that closes a unit, while its answer is already being sent."""

SPAN_TICK: Final = "engine.tick"
"""The worker's span of one batched forward of all due sessions; each has a trace of its own."""

EVENT_FIRST_AUDIO: Final = "first_audio"
"""The event in a `unit` span: its first audio was sent."""

EVENT_FIRST_TEXT: Final = "first_text"
"""The event in a `unit` span: its first text was sent."""

EVENT_POSITION: Final = "position"
"""The event in a `session.queue` span: the place in the queue changed."""

EVENT_REFUSED: Final = "event.refused"
"""The event in a `unit` or `session.start` span: a client event was not applied; `error.type` says why."""

# ------------------------------------------------------------------------------------------ attributes

ATTR_RPC_SYSTEM: Final = "rpc.system.name"
"""The RPC system, always `grpc`."""

ATTR_RPC_METHOD: Final = "rpc.method"
"""The full name of the method, such as `antiphon.v1.InferenceService/Generate`."""

ATTR_RPC_STATUS: Final = "rpc.status_code"
"""The status of the call as text, such as `CANCELLED`."""

ATTR_ERROR_TYPE: Final = "error.type"
"""A reason or error code from an enumeration."""

ATTR_SERVER_ADDRESS: Final = "server.address"
"""The host of the worker."""

ATTR_SERVER_PORT: Final = "server.port"
"""The port of the worker."""

ATTR_PEER_ADDRESS: Final = "network.peer.address"
"""The address of the worker's caller, as gRPC writes it: `ipv4:10.0.0.7:41234`, `unix:`."""

ATTR_PEER_IDENTITY: Final = "tls.client.subject"
"""The names in the caller's certificate, separated by commas, where the worker asks for one."""

ATTR_HTTP_METHOD: Final = "http.request.method"
"""The method of the upgrade request."""

ATTR_URL_PATH: Final = "url.path"
"""The path of the upgrade request, without the query, which may hold a key."""

ATTR_HTTP_STATUS: Final = "http.response.status_code"
"""The status of the answer to the upgrade request."""

ATTR_PROTOCOL: Final = "network.protocol.name"
"""The name of the protocol, `websocket`."""

ATTR_GEN_AI_OPERATION: Final = "gen_ai.operation.name"
"""The operation of the model: `chat`, `transcription` or `duplex`."""

ATTR_GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
"""The provider, always `antiphon`."""

PROVIDER: Final = "antiphon"
"""The value of `gen_ai.provider.name`."""

ATTR_GEN_AI_MODEL: Final = "gen_ai.request.model"
"""The name of the model that serves the session."""

ATTR_GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""The number of tokens that went into the context."""

ATTR_GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
"""The number of tokens that the model produced."""

ATTR_GEN_AI_FINISH: Final = "gen_ai.response.finish_reasons"
"""The list of reasons that the model stopped."""

ATTR_SESSION_ID: Final = "session.id"
"""The id of the session, on each of its spans."""

ATTR_MODE: Final = "antiphon.mode"
"""The mode of the session: `audio_duplex`, `omni_duplex`, `chat` or `transcription`."""

ATTR_DIALECT: Final = "antiphon.dialect"
"""The public protocol that the client speaks."""

ATTR_KEY_HASH: Final = "antiphon.key.hash"
"""The first digits of the key's hash in the file of keys; they identify the key without revealing it."""

ATTR_QUEUE_LENGTH: Final = "antiphon.queue.length"
"""The number of sessions in the queue."""

ATTR_QUEUE_POSITION: Final = "antiphon.queue.position"
"""The session's own place in the queue, from 1."""

ATTR_OUTCOME: Final = "antiphon.outcome"
"""The outcome of a wait for a slot, a value of `QueueOutcome`."""

ATTR_REPLAYED: Final = "antiphon.failover.units"
"""The number of journal units that another worker replayed."""

ATTR_UNIT: Final = "antiphon.unit"
"""The number of the unit at its worker, from 1."""

ATTR_UNIT_END: Final = "antiphon.unit.end"
"""The way in which the unit ended."""

ATTR_SESSION_DROPPED: Final = "antiphon.session.dropped"
"""The number of input units that were dropped in the session."""

ATTR_TURN: Final = "antiphon.turn"
"""The number of the turn in its session, from 0."""

ATTR_FIRST_TEXT: Final = "antiphon.turn.first_text_seconds"
"""The time to first text in seconds, from the end of the input that started the turn."""

ATTR_FIRST_AUDIO: Final = "antiphon.turn.first_audio_seconds"
"""The time to first audio in seconds, from the end of the input that started the turn."""

ATTR_SLOT: Final = "antiphon.slot"
"""The number of the slot at its worker."""

ATTR_LEASE_EPOCH: Final = "antiphon.lease.epoch"
"""The epoch of the lease on the slot."""

ATTR_WORKER_ID: Final = "antiphon.worker.id"
"""The name of the worker."""

ATTR_KV_TOKENS: Final = "antiphon.kv.tokens"
"""The number of tokens in the session's context."""

ATTR_BATCH_SIZE: Final = "antiphon.batch.size"
"""The number of sessions in a batched forward."""

ATTR_BATCH_TOKENS: Final = "antiphon.batch.tokens"
"""The number of tokens in a batched forward."""

ATTR_TICK_ID: Final = "antiphon.tick.id"
"""The number of a tick of the engine."""

ATTR_DEVICE_SECONDS: Final = "antiphon.tick.device_seconds"
"""The device time of a tick's forward in seconds."""

ATTR_CLOSE_CODE: Final = "antiphon.close.code"
"""The close code of the WebSocket."""

ATTR_CLOSE_REASON: Final = "antiphon.close.reason"
"""The reason that the session ended, from an enumeration."""

ATTR_SESSION_SECONDS: Final = "antiphon.session.seconds"
"""The duration of the session in seconds."""

ATTR_SESSION_UNITS: Final = "antiphon.session.units"
"""The number of units, chat turns or utterance chunks that the session ran."""

ATTR_SESSION_TURNS: Final = "antiphon.session.turns"
"""The number of turns of the model."""

# --------------------------------------------------------------------------------------------- metrics


class Metric(NamedTuple):
    """An instrument: `name` of the Prometheus series, `unit` in UCUM, and the `buckets` of a histogram."""

    name: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


OTHER: Final = "other"
"""The label value for anything outside the label's enumeration."""

FIRST_SECONDS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)
"""The buckets of time to first text and audio, around the target of 1 s."""

UNIT_SECONDS: Final = (
    *(0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    *(0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 5.0),
)
"""The buckets of a unit's time, around the one second of audio that it holds."""

PHASE_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""The buckets of the phases of a unit's time."""

SLACK_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The buckets of a unit's slack, the time left to its deadline; the first bucket holds late units."""

OVERHEAD_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
"""The buckets of the adapter's overhead, around the target of 1 ms."""

QUEUE_SECONDS: Final = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""The buckets of the wait for a slot."""

SESSION_SECONDS: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0)
"""The buckets of the duration of a session."""

TICK_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
"""The buckets of the duration of a tick."""

BATCH_SESSIONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""The buckets of the number of sessions in a tick."""

BATCH_TOKENS: Final = (*BATCH_SESSIONS, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
"""The buckets of the number of tokens in a tick."""

LAG_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""The buckets of the delay of an event loop's timers."""

OUTBOX_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""The buckets of the audio in an outbox, in seconds."""


class Phase(StrEnum):
    """Label `phase`: the parts of a unit's time at the worker."""

    INBOX = "inbox"
    PREFILL = "prefill"
    GENERATE = "generate"
    FINALIZE = "finalize"
    SPEECH = "speech"
    VOCODER = "vocoder"


class Work(StrEnum):
    """Label `work`: the kinds of work in the engine's ticks."""

    UNITS = "units"
    """Real-time work: units of conversations, seconds of a transcription."""
    REST = "rest"
    """Work without a deadline: chats, token streams, prompts, recordings."""


class Preparation(StrEnum):
    """Label `preparation`: the ways to prepare a region of a model for a device."""

    CAPTURE = "capture"
    """The region's kernels are captured, so that one launch runs them all."""
    COMPILATION = "compilation"
    """torch.compile generates kernels for a shape."""


class SlotState(StrEnum):
    """Label `state` of slots."""

    FREE = "free"
    GRANTED = "granted"
    """Granted to a session that has not attached yet."""
    ATTACHED = "attached"
    CLEANING = "cleaning"


class PageState(StrEnum):
    """Label `state` of pages of the KV cache."""

    USED = "used"
    CACHED = "cached"
    """The page holds a prefix of earlier contexts; no session uses it."""
    FREE = "free"


class Side(StrEnum):
    """Label `side`: the side that caused an error."""

    CLIENT = "client"
    SERVER = "server"


class DropReason(StrEnum):
    """Label `reason` of units that were dropped."""

    STALE = "stale"
    CANCELLED = "cancelled"
    SESSION_END = "session_end"


class QueueOutcome(StrEnum):
    """Label `outcome` of waiting for a slot."""

    GRANTED = "granted"
    GAVE_UP = "gave_up"
    """The session ended while it waited, or the client left the queue."""
    EXPIRED = "expired"
    FULL = "full"
    SLOT_LIMIT = "slot_limit"
    """The direct caller has reached its limit of slots."""
    QUOTA = "quota"
    """The key of the direct caller has used up its daily quota."""
    NO_WORKER = "no_worker"


class LeaseOutcome(StrEnum):
    """Label `outcome` of leases."""

    RELEASED = "released"
    LOST = "lost"
    """The worker ended the session."""
    REFUSED = "refused"
    """The worker rejected the lease."""
    RETURNED = "returned"
    """The lease was returned unused: no session attached with it."""


class Rejection(StrEnum):
    """Label `reason` of clients that were rejected."""

    ORIGIN = "origin"
    AUTH = "auth"
    EXPIRED = "expired"
    """The key has expired."""
    FORBIDDEN = "forbidden"
    """The key or the client secret does not allow this mode or model."""
    RATE = "rate"
    QUOTA = "quota"
    """The key has used up its daily quota."""
    SIZE = "size"
    """A message was too large."""
    FULL = "full"
    MODE = "mode"
    """The server does not offer the requested service."""
    SHUTDOWN = "shutdown"
    RESUME = "resume"
    """The requested session cannot be resumed."""


class Direction(StrEnum):
    """Label `direction` of bytes, as the adapter sees it."""

    IN = "in"
    OUT = "out"


class Hop(StrEnum):
    """Label `hop` of bytes."""

    PUBLIC = "public"
    """Between clients and the adapter."""
    GRPC = "grpc"
    """Between the adapter and workers."""


class SlowAction(StrEnum):
    """Label `action` of slow consumers."""

    PAUSED = "paused"
    """No further unit runs until the client has read."""
    CLOSED = "closed"


class ResumeOutcome(StrEnum):
    """Label `outcome` of lost connections and of attempts to resume a session."""

    RESUMED = "resumed"
    EXPIRED = "expired"
    """The resume window ended before the client reconnected."""
    REFUSED = "refused"
    """The token matched no session."""
    FORWARDED = "forwarded"
    """Another adapter has the session; it counts the attempt, too."""
    TAKEN_OVER = "taken_over"
    """This adapter took the session over: its adapter had died or handed it over."""


class FailoverOutcome(StrEnum):
    """Label `outcome` of sessions that lost their worker and had a journal."""

    CONTINUED = "continued"
    """Another worker continues the session."""
    NO_SLOT = "no_slot"
    """No slot became free in time."""
    NO_JOURNAL = "no_journal"
    """The journal does not hold enough units for a replay."""
    SUSPECT = "suspect"
    """The session may itself have caused the loss of its workers."""
    REFUSED = "refused"
    """No worker replayed the journal."""
    LEFT = "left"
    """The session ended during the failover."""


# Metrics of the adapter.
FIRST_AUDIO: Final = Metric(
    "antiphon_first_audio_seconds",
    "s",
    "Time to first audio, from the end of the input that started the answer.",
    ("mode", "dialect"),
    FIRST_SECONDS,
)
FIRST_TEXT: Final = Metric(
    "antiphon_first_text_seconds",
    "s",
    "Time to first text, from the end of the input that started the answer.",
    ("mode",),
    FIRST_SECONDS,
)
UNIT: Final = Metric(
    "antiphon_unit_seconds",
    "s",
    "From a unit's accepted input to its last output passed on.",
    ("mode", "end"),
    UNIT_SECONDS,
)
UNIT_DEADLINE_MISSES: Final = Metric(
    "antiphon_unit_deadline_misses_total", "{unit}", "Units that took longer than their audio.", ("mode",)
)
UNITS: Final = Metric("antiphon_units_total", "{unit}", "Completed units.", ("mode", "end"))
UNITS_DROPPED: Final = Metric(
    "antiphon_units_dropped_total",
    "{unit}",
    "Input units that were dropped before they reached the model.",
    ("mode", "reason"),
)
ADAPTER_OVERHEAD: Final = Metric(
    "antiphon_adapter_overhead_seconds",
    "s",
    "Time of a unit outside the worker.",
    (),
    OVERHEAD_SECONDS,
)
QUEUE_WAIT: Final = Metric(
    "antiphon_queue_wait_seconds", "s", "Wait for a slot.", ("pool", "outcome"), QUEUE_SECONDS
)
QUEUE_LENGTH: Final = Metric("antiphon_queue_length", "{session}", "Sessions in the queue, of all adapters.")
QUEUE_ESTIMATE_ERROR: Final = Metric(
    "antiphon_queue_estimate_error_seconds",
    "s",
    "Error of the first wait estimate of a session.",
    (),
    QUEUE_SECONDS,
)
SESSIONS_ACTIVE: Final = Metric(
    "antiphon_sessions_active", "{session}", "Sessions that are queued or have a slot.", ("mode",)
)
SESSIONS_DETACHED: Final = Metric(
    "antiphon_sessions_detached", "{session}", "Sessions that wait for their client to reconnect.", ("mode",)
)
HANDSHAKES_WAITING: Final = Metric(
    "antiphon_handshakes_waiting", "{connection}", "Connections that wait for their handshake."
)
RESUMES: Final = Metric(
    "antiphon_resumes_total", "{session}", "Sessions that lost their connection, by outcome.", ("outcome",)
)
FAILOVERS: Final = Metric(
    "antiphon_failovers_total", "{session}", "Sessions that lost their worker, by outcome.", ("outcome",)
)
REPLAYED_UNITS: Final = Metric(
    "antiphon_replayed_units_total", "{unit}", "Journal units that another worker replayed."
)
JOURNAL_BYTES: Final = Metric(
    "antiphon_journal_bytes", "By", "Inputs and records of units in journals, kept for a failover."
)
JOURNAL_GAPS: Final = Metric(
    "antiphon_journal_gaps_total",
    "{gap}",
    "Journal records that did not reach Redis; the journal is then rewritten.",
)
JOURNALS_BEHIND: Final = Metric(
    "antiphon_journals_behind", "{session}", "Sessions with an incomplete journal in Redis."
)
SESSIONS: Final = Metric("antiphon_sessions_total", "{session}", "Ended sessions.", ("mode", "reason"))
SESSION_LENGTH: Final = Metric(
    "antiphon_session_seconds", "s", "Duration of sessions.", ("mode",), SESSION_SECONDS
)
LEASES: Final = Metric("antiphon_leases_total", "{lease}", "Ended leases.", ("outcome", "revision"))
BYTES: Final = Metric("antiphon_bytes_total", "By", "Bytes sent and received.", ("direction", "hop"))
OUTBOX: Final = Metric(
    "antiphon_outbox_seconds",
    "s",
    "Audio that waits in a client's outbox after a unit; a session whose units leave none counts once, as 0.",
    (),
    OUTBOX_SECONDS,
)
SLOW_CONSUMERS: Final = Metric(
    "antiphon_slow_consumers_total", "{session}", "Slow consumers by the action taken.", ("action",)
)
REJECTED: Final = Metric("antiphon_rejected_total", "{connection}", "Rejected clients.", ("reason",))
LIMITS_ALONE: Final = Metric(
    "antiphon_limits_alone_total",
    "{connection}",
    "Connections admitted by the limits of this adapter alone, as Redis did not answer.",
)
TENANT_SESSIONS: Final = Metric(
    "antiphon_tenant_sessions_total",
    "{session}",
    "Ended sessions by the name of their key, for the first 100 keys; the others count as `other`.",
    ("tenant",),
)
TENANT_SECONDS: Final = Metric(
    "antiphon_tenant_seconds_total",
    "s",
    "Seconds for which sessions held slots, by the name of their key.",
    ("tenant",),
)
TENANT_TOKENS: Final = Metric(
    "antiphon_tenant_tokens_total",
    "{token}",
    "Input and output tokens of sessions, by the name of their key.",
    ("tenant", "direction"),
)
USAGE_LINES: Final = Metric(
    "antiphon_usage_lines_total", "{line}", "Lines of the usage log, by outcome.", ("outcome",)
)
WORKERS: Final = Metric("antiphon_workers", "{worker}", "Workers by their state.", ("state",))
READY: Final = Metric("antiphon_ready", "", "1 if a session could start, as in /readyz.")
INFLIGHT_BYTES: Final = Metric("antiphon_inflight_bytes", "By", "Buffered input and output of all sessions.")
CPU_CORES: Final = Metric("antiphon_cpu_cores", "{core}", "Cores in use, mean of 3 s.")
TRACE_CONTEXTS_INVALID: Final = Metric(
    "antiphon_trace_contexts_invalid_total", "{context}", "Malformed trace contexts of clients."
)

# Metrics of the worker.
UNIT_PHASE: Final = Metric(
    "antiphon_unit_phase_seconds", "s", "Time of each phase of a unit.", ("phase",), PHASE_SECONDS
)
KV_TOKENS: Final = Metric("antiphon_kv_tokens", "{token}", "Tokens in the contexts of sessions.", ("worker",))
KV_CAPACITY: Final = Metric(
    "antiphon_kv_capacity_tokens", "{token}", "Capacity of the KV cache in tokens.", ("worker",)
)
KV_PAGES: Final = Metric("antiphon_kv_pages", "{page}", "Pages of the KV cache by their state.", ("state",))
KV_PREFIX_TOKENS: Final = Metric(
    "antiphon_kv_prefix_tokens_total",
    "{token}",
    "Tokens taken from the prefix cache instead of being computed.",
)
LATE_PREPARATIONS: Final = Metric(
    "antiphon_late_preparations_total",
    "{preparation}",
    "Regions of the model that were captured or compiled during serving, while all sessions waited.",
    ("preparation",),
)
DEVICE_MEMORY: Final = Metric(
    "antiphon_device_memory_bytes", "By", "Device memory that the worker holds.", ("worker",)
)
UNIT_SLACK: Final = Metric(
    "antiphon_unit_slack_seconds",
    "s",
    "Time from a unit's completion at the worker to its deadline; 0 if it was late.",
    (),
    SLACK_SECONDS,
)
WORKER_DEADLINE_MISSES: Final = Metric(
    "antiphon_worker_deadline_misses_total", "{unit}", "Units that were completed after their deadline.", ()
)
TICK_WORK: Final = Metric(
    "antiphon_tick_work_seconds_total",
    "s",
    "Time in ticks by kind of work: with a deadline (units) or without (rest).",
    ("work",),
)
TICK: Final = Metric(
    "antiphon_tick_seconds", "s", "Duration of a tick, which runs one batched forward.", (), TICK_SECONDS
)
TICK_BATCH: Final = Metric("antiphon_tick_batch_size", "{session}", "Sessions in a tick.", (), BATCH_SESSIONS)
TICK_TOKENS: Final = Metric("antiphon_tick_tokens", "{token}", "Tokens in a tick.", (), BATCH_TOKENS)
CLEANUP: Final = Metric(
    "antiphon_cleanup_seconds", "s", "From a session's end to its free slot.", (), PHASE_SECONDS
)
RPC_SERVER_CALL: Final = Metric(
    "antiphon_rpc_server_call_seconds", "s", "Duration of gRPC calls.", ("method", "code"), SESSION_SECONDS
)
MODEL_INFO: Final = Metric(
    "antiphon_model_info", "", "The served model and its device.", ("model", "device", "revision")
)

# Metrics of both services.
SLOTS: Final = Metric("antiphon_slots", "{slot}", "Slots by their state.", ("state",))
DISPATCHER_UP: Final = Metric(
    "antiphon_dispatcher_up",
    "",
    "1 if the last call to the Redis of the shared queue succeeded; absent without a shared queue.",
)
ERRORS: Final = Metric("antiphon_errors_total", "{error}", "Errors by code.", ("code", "side"))
EVENT_LOOP_LAG: Final = Metric(
    "antiphon_event_loop_lag_seconds", "s", "Delay of the event loop's timers.", (), LAG_SECONDS
)
TELEMETRY_DROPPED: Final = Metric(
    "antiphon_telemetry_dropped_total", "{span}", "Spans that could not be exported."
)
BUILD_INFO: Final = Metric("antiphon_build_info", "", "Version of the running build.", ("version",))

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics of this module."""
