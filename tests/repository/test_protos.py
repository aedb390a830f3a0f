"""The gRPC contract against what else names its parts: the public `config` object, and the error reasons."""

from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc._cython import cygrpc

from antiphon import contract
from antiphon.contract import Reason
from antiphon.v1 import common_pb2, dispatch_service_pb2, inference_service_pb2
from ws_adapter.protocol.core.config import DuplexConfig

STATUS_REASONS = set(
    "CONFIG_INVALID METADATA_INVALID PAYLOAD_INVALID MODEL_NOT_FOUND VOICE_NOT_FOUND MODE_UNSUPPORTED "
    "LEASE_MISSING LEASE_INVALID STALE_LEASE LEASE_REVOKED STREAM_EXISTS CONFIG_REQUIRED CONFIG_REPEATED "
    "UNIT_OUT_OF_ORDER UNIT_WINDOW NO_FREE_SLOT QUEUE_FULL KV_EXHAUSTED ATTACH_TIMEOUT UNIT_TIMEOUT "
    "IDLE_TIMEOUT SESSION_LIMIT LOADING DRAINING ENGINE_FATAL".split()
)
ITEM_REASONS = set(
    "AUDIO_INVALID IMAGE_INVALID VIDEO_INVALID PARAMS_INVALID CONTENT_UNSUPPORTED INPUT_TOO_LONG "
    "INFERENCE_FAILED".split()
)
CLIENT_SIDE_REASONS = {"MESSAGE_TOO_LARGE", "WORKER_LOST"}


def test_duplex_config_has_the_names_of_the_public_config_and_each_can_be_unset() -> None:
    config = common_pb2.DuplexConfig()
    assert set(config.DESCRIPTOR.fields_by_name) == set(DuplexConfig.__struct_fields__)
    for name in DuplexConfig.__struct_fields__:
        assert not config.HasField(name)  # raises for a field that is not `optional`


def test_reasons_are_those_of_the_contract() -> None:
    assert {str(reason) for reason in Reason} == STATUS_REASONS | ITEM_REASONS | CLIENT_SIDE_REASONS
    assert all(reason == name for name, reason in Reason.__members__.items())
    assert {str(reason) for reason in contract.ITEM_REASONS} == ITEM_REASONS
    assert {str(reason) for reason in contract.CLIENT_SIDE_REASONS} == CLIENT_SIDE_REASONS


def streams(service: ServiceDescriptor) -> dict[str, tuple[bool, bool]]:
    return {m.name: (m.client_streaming, m.server_streaming) for m in service.methods}


def test_service_has_three_streams_and_one_question() -> None:
    service = inference_service_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    both = (True, True)
    assert streams(service) == {
        "Prefill": both,
        "Generate": both,
        "Finalize": both,
        "GetInfo": (False, False),
    }
    assert service.full_name == f"{contract.ERROR_DOMAIN}.InferenceService"


def test_dispatch_service_streams_what_becomes_of_a_ticket() -> None:
    service = dispatch_service_pb2.DESCRIPTOR.services_by_name["DispatchService"]
    assert streams(service) == {"Acquire": (False, True)}
    update = dispatch_service_pb2.AcquireResponse.DESCRIPTOR.oneofs_by_name["update"]
    fields = [(field.name, field.number) for field in update.fields]
    assert fields == [("queued", 1), ("granted", 2), ("revoked", 3)]


@pytest.mark.parametrize(
    "module", [common_pb2, dispatch_service_pb2, inference_service_pb2], ids=lambda module: module.__name__
)
def test_every_enum_has_an_unspecified_zero(module: ModuleType) -> None:
    for enum in module.DESCRIPTOR.enum_types_by_name.values():
        assert enum.values_by_number[0].name.endswith("_UNSPECIFIED"), enum.name


@pytest.mark.parametrize("option", dict(contract.CLIENT_OPTIONS))
def test_grpc_knows_each_channel_option(option: str) -> None:
    """gRPC ignores an unknown option without a word, so look the name up in its compiled core."""
    assert option.encode() in Path(cygrpc.__file__).read_bytes()
