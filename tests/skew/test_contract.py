"""The contract only gains: whatever the release before has is still there, as it was."""

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto

from antiphon.v1 import inference_service_pb2
from tests.skew.contract import Contract

NOW = descriptor_pool.Default()  # type: ignore[no-untyped-call]
PACKAGE = inference_service_pb2.DESCRIPTOR.package


def changed_fields(before: DescriptorProto, name: str) -> list[str]:
    now = DescriptorProto()
    NOW.FindMessageTypeByName(name).CopyToProto(now)
    fields = {field.number: field for field in now.field}
    changed = [
        f"{name}.{field.name}"
        for field in before.field
        if field.number not in fields
        or (field.name, field.type, field.label, field.type_name)
        != tuple(getattr(fields[field.number], part) for part in ("name", "type", "label", "type_name"))
    ]
    for nested in before.nested_type:
        changed += changed_fields(nested, f"{name}.{nested.name}")
    return changed


def changed_values(before: EnumDescriptorProto, name: str) -> list[str]:
    now = {value.name: value.number for value in NOW.FindEnumTypeByName(name).values}
    return [f"{name}.{value.name}" for value in before.value if now.get(value.name) != value.number]


def test_messages_and_enums_of_the_release_before_are_unchanged() -> None:
    files = [file for file in Contract().files.file if file.package == PACKAGE]
    assert sum(len(file.message_type) for file in files) > 20
    changed: list[str] = []
    for file in files:
        for message in file.message_type:
            changed += changed_fields(message, f"{PACKAGE}.{message.name}")
        for enum in file.enum_type:
            changed += changed_values(enum, f"{PACKAGE}.{enum.name}")
    assert changed == []


def test_methods_of_the_release_before_are_unchanged() -> None:
    services = [service for file in Contract().files.file for service in file.service]
    assert services
    for service in services:
        now = NOW.FindServiceByName(f"{PACKAGE}.{service.name}").methods_by_name
        for method in service.method:
            same = now[method.name]
            assert method.input_type == f".{same.input_type.full_name}"
            assert method.output_type == f".{same.output_type.full_name}"
            assert (method.client_streaming, method.server_streaming) == (
                same.client_streaming,
                same.server_streaming,
            )


def test_the_two_contracts_are_not_the_same() -> None:
    """Else what is tested here would be nothing."""
    assert "tools" not in Contract().message("TurnInput").DESCRIPTOR.fields_by_name
    assert "tools" in inference_service_pb2.TurnInput.DESCRIPTOR.fields_by_name
