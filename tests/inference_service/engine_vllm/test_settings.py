"""Options of the worker, the parameters that vLLM gets, and what is refused before it is started."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.checkpoints.location import find
from inference_service.config.resolve import resolve
from inference_service.config.sampling import unit_overrides
from inference_service.engine_vllm import loading
from inference_service.engine_vllm.generator import Request, medium_name, seed_of
from inference_service.engine_vllm.plugin import WORKER, follow_worker
from inference_service.engine_vllm.settings import engine_arguments, prepare_environment
from inference_service.errors import ConfigurationError, UnitRefused
from inference_service.interface.engine import EngineInfo
from inference_service.interface.setups import KEEP_ALL, ChatSetup, Mode, Sampling, Tenant
from inference_service.options import WorkerOptions
from inference_service.rpc.messages import replies
from tests.support import scripted_engine

FOLDER = Path("model")
INFO = replace(
    scripted_engine.INFO,
    context_limit=100,
    modes=frozenset({Mode.CHAT, Mode.TOKENS}),
    speaks=False,
    engine=EngineInfo("vllm", "0.32.0", "cuda", 2, 3),
    sampling_without_effect=frozenset({"length_penalty"}),
)


def request(sampling: Sampling, **changes: Any) -> Request:
    given = {"ids": (1, 2), "most": 7, "ends": frozenset({9, 8}), "seed": 5, "tenant": Tenant(b"\x01\xff")}
    return Request(sampling=sampling, **{**given, **changes})


def test_parameters_of_a_request() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.5, top_k=4, repetition_penalty=1.2, stop_token_ids=(3,))
    assert request(sampling).parameters() == {
        "max_tokens": 7,
        "temperature": 0.7,
        "top_p": 0.5,
        "top_k": 4,
        "repetition_penalty": 1.2,
        "stop_token_ids": [3, 8, 9],
        "ignore_eos": True,
        "seed": 5,
        "detokenize": False,
    }
    given = request(Sampling(ignore_eos=True, top_k=KEEP_ALL)).parameters()
    assert (given["stop_token_ids"], given["top_k"]) == ([], 0)
    for temperature in (0.0, 0.0005):  # greedy
        given = request(Sampling(temperature=temperature)).parameters()
        assert (given["temperature"], given["seed"]) == (0.0, None)


def test_salt_names_the_tenant() -> None:
    assert request(Sampling()).cache_salt == "01ff"
    assert request(Sampling(), tenant=Tenant()).cache_salt is None


def test_seed_differs_by_session_and_unit_and_fits_63_bits() -> None:
    seeds = {seed_of(seed, unit) for seed in (0, 1, 2**64 - 1) for unit in (0, 1, 2)}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_arguments_of_a_usual_worker() -> None:
    given = engine_arguments(WorkerOptions(engine="vllm"), FOLDER)
    assert (given["model"], given["dtype"], given["trust_remote_code"]) == ("model", "auto", False)
    assert (given["tensor_parallel_size"], given["pipeline_parallel_size"]) == (1, 1)
    assert not {"quantization", "gpu_memory_utilization", "max_model_len"} & given.keys()
    # They stay within the positions of the model.
    options = WorkerOptions(engine="vllm", context_limit=256)
    assert engine_arguments(options, FOLDER, 256)["max_model_len"] == 256


def test_arguments_of_options() -> None:
    passed_on: dict[str, Any] = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "distributed_executor_backend": "ray",
        "quantization": "awq",
        "gpu_memory_utilization": 0.8,
        "dtype": "float16",
    }
    options = WorkerOptions(engine="vllm", slots=5, compile="off", context_limit=100, **passed_on)
    expected = {**passed_on, "max_num_seqs": 5, "enforce_eager": True, "max_model_len": 101}
    assert expected.items() <= engine_arguments(options, FOLDER).items()


def test_environment_keeps_what_the_operator_set() -> None:
    environment = {"VLLM_LOGGING_LEVEL": "DEBUG"}
    prepare_environment(WorkerOptions(engine="vllm", threads=3), environment)
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"engine": "other"}, "engine"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"quantization": "awq"}, "quantization"),
        ({"engine": "vllm", "tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"engine": "vllm", "gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"engine": "vllm", "distributed_executor_backend": "other"}, "distributed_executor_backend"),
        ({"engine": "vllm", "device": "cuda"}, "device"),
        ({"engine": "vllm", "kernels": "off"}, "kernels"),
        ({"engine": "vllm", "no_speech": True}, "no_speech"),
        ({"engine": "vllm", "vocoder_steps": 3}, "vocoder_steps"),
        ({"engine": "vllm", "shared_prompts": Path("prompts")}, "shared_prompts"),
        ({"engine": "vllm", "window_high": 9}, "window_high"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name} "):
        WorkerOptions(**given)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'antiphon\[vllm\]'"):
        loading.load_engine(WorkerOptions(engine="vllm"), lambda told: None, lambda message: None)


def test_models_that_vllm_does_not_serve_are_refused_before_it_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^The engine vllm serves .* pass --engine antiphon\.$"):
        loading.read_served(find("antiphon-mini"))
    (tmp_path / "config.json").write_text('{"model_type": "whisper", "is_encoder_decoder": true}')
    with pytest.raises(ConfigurationError, match=r"^The engine vllm serves models without an encoder"):
        loading.read_served(tmp_path)


def test_media_names_differ_by_tenant_kind_and_bytes() -> None:
    given = [(b"a", "CLIP", b"x"), (b"b", "CLIP", b"x"), (b"a", "VIDEO", b"x"), (b"a", "CLIP", b"y")]
    names = [medium_name(Tenant(salt), kind, data) for salt, kind, data in given]
    assert len({*names}) == len(given)
    assert medium_name(Tenant(b"a"), "CLIP", b"x") == names[0]


def test_get_info_describes_the_engine() -> None:
    told = replies.model_info(INFO).engine
    assert (told.name, told.version) == ("vllm", "0.32.0")
    assert (told.tensor_parallel_size, told.pipeline_parallel_size) == (2, 3)
    usual = replies.model_info(replace(INFO, engine=EngineInfo())).engine
    assert (usual.name, usual.version != "") == ("antiphon", True)


def config(**sampling: Any) -> pb.SessionConfig:
    return pb.SessionConfig(mode=pb.SESSION_MODE_CHAT, sampling=common.SamplingParams(**sampling))


def test_length_penalty_other_than_1_is_ignored_in_a_session_and_refused_in_a_unit() -> None:
    plan = resolve(config(length_penalty=1.5), INFO, lambda: 1)
    assert plan.ignored_fields == ("sampling.length_penalty",)
    assert plan.effective.sampling.length_penalty == 1.0
    assert resolve(config(length_penalty=1.0), INFO, lambda: 1).ignored_fields == ()
    setup = ChatSetup(Sampling(), 1)
    with pytest.raises(UnitRefused, match=r"^run\.length_penalty must be 1 with the engine vllm"):
        unit_overrides(common.SamplingParams(length_penalty=1.5), "run", setup, INFO)
    assert unit_overrides(common.SamplingParams(length_penalty=1.0), "run", setup, INFO).length_penalty == 1.0


def test_plugin_does_nothing_outside_the_processes_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    for worker in ("", str(os.getpid())):
        monkeypatch.setenv(WORKER, worker)
        follow_worker()
    assert signal.getsignal(signal.SIGINT) is before
