"""The settings of one worker."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from antiphon_service.leases import MIN_WORKER_KEY_BYTES
from antiphon_service.pools import REVISION, STABLE
from inference_service.errors import ConfigurationError
from inference_service.kernels.selection import CHOICES

DTYPES = ("float32", "bfloat16", "float16")
COMPILE = ("off", "on")
ENGINES = ("antiphon", "vllm")
BACKENDS = ("mp", "ray")
MOST_SLOTS = 64
"""Limit of slots of a worker without the option `slots`."""
MOST_VOCODER_STEPS = 16
RELOADED = frozenset({"drain_timeout_s"})
"""Options that a running worker applies when it reads its settings file again."""

EARS = ("full", "fast")

_OF_DISPATCHER = ("dispatcher_ca", "dispatcher_cert", "dispatcher_cert_key", "dispatcher_password_file")


@dataclass(frozen=True)
class SpeechOptions:
    """Speech options of MiniCPM-o: the options of a worker that other models do not have."""

    no_speech: bool = False
    vocoder: Path | None = None
    vocoder_steps: int | None = None
    vocoder_dtype: str | None = None
    voice: Path | None = None


USUAL_SPEECH = SpeechOptions()

_OF_VLLM = (
    *("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"),
    *("quantization", "gpu_memory_utilization"),
)
"""Options of the engine `vllm` alone."""
_NOT_OF_VLLM = (
    *("no_speech", "vocoder", "vocoder_steps", "vocoder_dtype", "voice", "ear"),
    *("shared_prompts", "window_high", "window_low"),
)
"""Options of the engine `antiphon` alone; each is None or False unless it is given."""


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker. Raises `ConfigurationError` for values that cannot work."""

    listen: str = "127.0.0.1:50051"
    """`host:port`, where port 0 takes a free one, or `unix:path`."""

    slots: int | None = None
    """Limit of concurrent sessions; a further one is refused with NO_FREE_SLOT. None is as many as fit into
    memory and can be answered in time, up to `MOST_SLOTS`."""

    no_admission: bool = False
    """Turns admission control off: a free slot takes a session even if the worker is late."""

    model: str = "antiphon-mini"
    """Name of a shipped checkpoint, path of a folder, or `owner/name` on the Hugging Face hub."""

    revision: str = STABLE
    """Name of the revision of the model, by which adapters divide sessions among workers of one model."""

    engine: str = "antiphon"
    """The engine, one of `ENGINES`."""

    tensor_parallel_size: int | None = None
    """Number of devices over which vLLM splits each layer (tensor parallelism); None is one."""

    pipeline_parallel_size: int | None = None
    """Number of groups of layers, each on devices of its own (pipeline parallelism); None is one."""

    distributed_executor_backend: str | None = None
    """Launcher of vLLM's processes for several devices: one of `BACKENDS`; None is `mp`, this machine."""

    quantization: str | None = None
    """vLLM's name of the quantisation of the weights; None is that of the checkpoint."""

    gpu_memory_utilization: float | None = None
    """Share of each device's memory that vLLM may take; None is vLLM's default."""

    device: str = "cpu"
    """The device of the model: `cpu`, `cuda`, `cuda:1`. For vLLM its build decides the device."""

    dtype: str | None = None
    """Data type of MiniCPM-o, Moshi or a causal language model, one of `DTYPES`; None is float32 on the CPU,
    else bfloat16."""

    no_speech: bool = False
    """Loads MiniCPM-o without its voice: it answers with text only."""

    vocoder: Path | None = None
    """Folder of MiniCPM-o's converted vocoder; None is `vocoder` in the model's own."""

    vocoder_steps: int | None = None
    """Steps of the vocoder's flow; None is 5. A session's cache grows with them."""

    vocoder_dtype: str | None = None
    """Data type of the vocoder's flow and of a session's cache, one of `DTYPES`; None is float32."""

    voice: Path | None = None
    """WAV file with MiniCPM-o's voice for sessions without one; None is the vocoder's own."""

    ear: str | None = None
    """Parts of antiphon-mini that listen, one of `EARS`: `fast` is the encoder alone, `full` adds a speech
    recogniser; None is `full`."""

    threads: int | None = None
    """Threads of torch on the CPU; None is one, the fastest for small models beside other processes."""

    kernels: str = "auto"
    """Compiled kernels: `auto` calls those that were built, `off` computes with torch and NumPy only."""

    compile: str | None = None
    """`on` compiles regions of the model at the start, `off` does not; None is `on` for CUDA alone."""

    drain_timeout_s: float = 30.0
    """Seconds for which sessions may continue after the signal to stop."""

    tls_cert: Path | None = None
    """PEM certificate chain; it makes the worker accept only TLS. Read again on SIGHUP, as the next two."""

    tls_key: Path | None = None
    """PEM key of the certificate, without a password."""

    tls_client_ca: Path | None = None
    """PEM certificates of the authorities, of which one must have signed each caller's certificate."""

    insecure_grpc: bool = False
    """Allows plain TCP beyond loopback, which also needs a `worker_key`."""

    grpc_compression: str | None = None
    """`gzip` allows compressed messages; None refuses them, because gRPC limits no expanded size."""

    worker_key: bytes | None = field(default=None, repr=False)
    """Key with which dispatchers sign leases; without it the worker trusts every caller that can connect."""

    dispatcher: str | None = field(default=None, repr=False)
    """URL of the Redis that adapters share, in which this worker registers its slots."""

    dispatcher_ca: Path | None = None
    """PEM file of the authorities that sign Redis's certificate; None is the system's. Read again on SIGHUP,
    as the next two are."""

    dispatcher_cert: Path | None = None
    """PEM certificate chain of the worker, for a Redis that requires client certificates."""

    dispatcher_cert_key: Path | None = None
    """PEM key of that certificate, without a password."""

    dispatcher_password_file: Path | None = None
    """File with the password of the user in the URL, if the URL has none."""

    advertise: str | None = None
    """The address that adapters dial, `host:port` or `unix:path`; None is the address of `listen`."""

    unleased_slots: int = 0
    """Number of slots for callers without a lease; no dispatcher assigns them."""

    worker_id: str | None = None
    """Name of this worker, to which each start adds a random suffix; None is `worker`."""

    shared_prompts: Path | None = None
    """File of system prompts, a JSON array of strings, whose pages in the prefix cache all tenants share."""

    window_high: int | None = None
    """Tokens of context above which the sliding window drops units; None is the model's."""

    window_low: int | None = None
    """Tokens of context down to which it drops units; None is the model's."""

    context_limit: int | None = None
    """Most tokens of one session's context; None is the model's."""

    admin_host: str = "127.0.0.1"
    """The host of the administration port."""

    admin_port: int | None = None
    """Port of `/metrics` and of the status page, 0 for any free one; None for neither."""

    admin_key: bytes | None = field(default=None, repr=False)
    """Key that callers of the administration must send; None admits everyone who reaches the port."""

    seed: int | None = None
    """Seed from which the seeds of sessions without one are drawn; None is the system's randomness."""

    @property
    def speech(self) -> SpeechOptions:
        """The options of MiniCPM-o's speech."""
        return SpeechOptions(self.no_speech, self.vocoder, self.vocoder_steps, self.vocoder_dtype, self.voice)

    @property
    def is_reloadable(self) -> bool:
        """Whether an option names a file that SIGHUP reloads."""
        files = (self.tls_cert, self.dispatcher_ca, self.dispatcher_cert)
        return any(file is not None for file in files)

    @property
    def needs_leases(self) -> bool:
        """Whether a session needs a lease."""
        return self.worker_key is not None or self.dispatcher is not None

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigurationError(f"engine must be one of {', '.join(ENGINES)}, not {self.engine!r}.")
        if self.engine != "vllm":
            for name in _OF_VLLM:
                if getattr(self, name) is not None:
                    raise ConfigurationError(f"{name} is for vLLM: leave it out, or pass --engine vllm.")
            return
        for name in _NOT_OF_VLLM:
            if getattr(self, name) not in (None, False):
                raise ConfigurationError(f"{name} means nothing to the engine vllm: leave it out.")
        if self.device != "cpu":
            raise ConfigurationError(
                "device means nothing to the engine vllm, whose build decides where it runs: leave it out. "
                "CUDA_VISIBLE_DEVICES chooses GPUs."
            )
        if self.kernels != "auto":
            raise ConfigurationError("kernels means nothing to the engine vllm: leave it out.")
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}.")
        if self.distributed_executor_backend not in (None, *BACKENDS):
            raise ConfigurationError(
                f"distributed_executor_backend must be one of {', '.join(BACKENDS)}, not "
                f"{self.distributed_executor_backend!r}."
            )
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ConfigurationError(f"gpu_memory_utilization must be above 0 and at most 1, not {share:g}.")

    def _check_dispatcher(self) -> None:
        if self.dispatcher is None:
            for name in (*_OF_DISPATCHER, "advertise"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(f"{name} means nothing without a dispatcher: pass --dispatcher.")
        if (self.dispatcher_cert is None) != (self.dispatcher_cert_key is None):
            raise ConfigurationError(
                "A certificate for Redis needs its key. Pass --dispatcher-cert and --dispatcher-cert-key."
            )
        if self.advertise is not None and not _is_target(self.advertise):
            raise ConfigurationError(f"Adapters cannot dial {self.advertise!r}: give host:port or unix:path.")
        if self.unleased_slots and not self.needs_leases:
            raise ConfigurationError(
                "unleased_slots means nothing where no session needs a lease: pass --dispatcher or a worker "
                "key too."
            )
        if self.unleased_slots < 0 or (self.slots is not None and self.unleased_slots > self.slots):
            raise ConfigurationError(
                f"unleased_slots must be 0 up to the number of slots, not {self.unleased_slots}."
            )

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for the first value that is out of range."""
        self._check_tls()
        if self.slots is not None and self.slots < 1:
            raise ConfigurationError(f"slots must be at least 1, not {self.slots}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigurationError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}.")
        if self.vocoder_dtype is not None and self.vocoder_dtype not in DTYPES:
            raise ConfigurationError(
                f"vocoder_dtype must be one of {', '.join(DTYPES)}, not {self.vocoder_dtype!r}."
            )
        if self.vocoder_steps is not None and not 1 <= self.vocoder_steps <= MOST_VOCODER_STEPS:
            raise ConfigurationError(
                f"vocoder_steps must be 1 to {MOST_VOCODER_STEPS}, not {self.vocoder_steps}."
            )
        if not re.fullmatch(REVISION, self.revision):
            raise ConfigurationError(
                f"revision must be 1 to 32 letters, digits and . _ -, not {self.revision!r}."
            )
        if self.threads is not None and self.threads < 1:
            raise ConfigurationError(f"threads must be at least 1, not {self.threads}.")
        if self.kernels not in CHOICES:
            raise ConfigurationError(f"kernels must be one of {', '.join(CHOICES)}, not {self.kernels!r}.")
        if self.compile is not None and self.compile not in COMPILE:
            raise ConfigurationError(f"compile must be one of {', '.join(COMPILE)}, not {self.compile!r}.")
        if self.ear is not None and self.ear not in EARS:
            raise ConfigurationError(f"ear must be one of {', '.join(EARS)}, not {self.ear!r}.")
        if not 0 <= self.drain_timeout_s < float("inf"):
            raise ConfigurationError(f"drain_timeout_s must be 0 or more, not {self.drain_timeout_s}.")
        if self.context_limit is not None and self.context_limit < 1:
            raise ConfigurationError(f"context_limit must be at least 1, not {self.context_limit}.")
        if self.admin_port is not None and not 0 <= self.admin_port <= 65535:
            raise ConfigurationError(f"admin_port must be from 0 to 65535, not {self.admin_port}.")
        if self.worker_key is not None and len(self.worker_key) < MIN_WORKER_KEY_BYTES:
            raise ConfigurationError(
                f"The worker key must have at least {MIN_WORKER_KEY_BYTES} bytes, not "
                f"{len(self.worker_key)}. Make one with: openssl rand -hex 32"
            )
        if self.admin_key is not None and not _is_key(self.admin_key):
            raise ConfigurationError(
                f"The admin key must have at least {MIN_WORKER_KEY_BYTES} bytes, all printable ASCII without "
                "blanks: it travels in a header. Make one with: openssl rand -hex 32"
            )
        self._check_engine()
        self._check_dispatcher()
        if self.worker_id is not None and not (self.worker_id.isascii() and self.worker_id.isprintable()):
            raise ConfigurationError("worker_id must be printable ASCII: it travels in call metadata.")

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError("TLS needs a certificate and its key. Pass --tls-cert and --tls-key.")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigurationError(
                "tls_client_ca means nothing without TLS. Pass --tls-cert and --tls-key too."
            )
        if self.tls_cert is not None and self.listen.startswith("unix:"):
            raise ConfigurationError("A Unix socket has no TLS. Leave --tls-cert out or listen on host:port.")
        if self.tls_cert is not None and self.insecure_grpc:
            raise ConfigurationError(
                "Leave out --insecure-grpc or --tls-cert: the first allows plain text, the second forbids it."
            )


def _is_key(key: bytes) -> bool:
    """Return whether `key` is long enough and fits into the header `Authorization`."""
    return len(key) >= MIN_WORKER_KEY_BYTES and all(0x20 < byte < 0x7F for byte in key)


def _is_target(text: str) -> bool:
    """Return whether `text` is `host:port`, `[v6]:port` or `unix:path`."""
    if text.startswith("unix:"):
        return text != "unix:"
    host, _, port = text.rpartition(":")
    return host != "" and "/" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536
