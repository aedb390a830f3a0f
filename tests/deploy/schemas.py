"""JSON schemas of the kinds of objects in `deploy/kubernetes`: tests need no network and no package of them.

`python -m tests.deploy.schemas SCHEMAS CRD...` writes them anew, into `tests/deploy/schemas`. They are from a
folder of strict schemas of the package `kubernetes-validate` (`v1.32.0-local-strict`) and from definitions of
cert-manager, KEDA and the Prometheus operator (CRD), all under the Apache License 2.0. Descriptions are left
out.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator

FOLDER: Final = Path(__file__).with_name("schemas")
_POINTER: Final = "/api/_definitions.json#/$defs/"
_CORE: Final = (
    *("configmap-v1", "namespace-v1", "persistentvolumeclaim-v1", "secret-v1", "service-v1"),
    *("deployment-apps-v1", "job-batch-v1", "networkpolicy-networking-v1", "poddisruptionbudget-policy-v1"),
)
_DROPPED: Final = frozenset({"description", "$id", "$schema", "format", "title"})
Schema = dict[str, Any]


def problems(thing: Schema) -> Iterator[str]:
    """Yield what is wrong with an object, also each field that its kind does not have."""
    validator = _validator(thing["apiVersion"], thing["kind"])
    for error in validator.iter_errors(thing):
        where = ".".join(str(part) for part in error.absolute_path)
        yield f"{thing['kind']} {thing['metadata']['name']}: {where}: {error.message}"


@cache
def _validator(version: str, kind: str) -> Draft202012Validator:
    """Return the validator of a kind; KeyError if none is there."""
    group = version.partition("/")[0]
    for file in FOLDER.glob("*.json"):
        found = json.loads(file.read_text())
        if f"{version} {kind}" in found["kinds"]:
            schema = {**found["kinds"][f"{version} {kind}"], "$defs": found["$defs"]}
            return Draft202012Validator(schema)
    raise KeyError(f"no schema of {kind} in the group {group}: write one by python -m tests.deploy.schemas")


def _plain(schema: Any) -> Any:
    """Return a schema without descriptions, with references to its own `$defs`."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema.replace(_POINTER, "#/$defs/") if isinstance(schema, str) else schema
    found = {}
    for name, value in schema.items():
        if name == "properties":
            found[name] = {field: _plain(each) for field, each in value.items()}
        elif not (name in _DROPPED or name.startswith("x-kubernetes")):
            found[name] = _plain(value)
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        for name, value in schema.items():
            if name == "$ref" and isinstance(value, str):
                yield value.removeprefix("#/$defs/")
            else:
                yield from _references(value)


def _closed(schema: Any) -> Any:
    """Return a schema of a CRD that takes no field which it does not name, as the API server prunes them."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(value) for name, value in schema.items() if name != "properties"}
    if "properties" in schema:
        found["properties"] = {name: _closed(value) for name, value in schema["properties"].items()}
        if schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    return found


def _of_kubernetes(folder: Path) -> Schema:
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    kinds: dict[str, Schema] = {}
    for name in _CORE:
        schema = json.loads((folder / f"{name}.json").read_text())
        [known] = schema["x-kubernetes-group-version-kind"]
        version = f"{known['group']}/{known['version']}".removeprefix("/")
        kinds[f"{version} {known['kind']}"] = _plain(schema)
    used: dict[str, Schema] = {}
    waiting = [*_references(list(kinds.values()))]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used[name] = _plain(definitions[name])
            waiting += _references(used[name])
    return {"kinds": kinds, "$defs": dict(sorted(used.items()))}


def _of_crd(file: Path) -> tuple[str, Schema]:
    crd = yaml.safe_load(file.read_text())
    spec = crd["spec"]
    kinds = {}
    for version in spec["versions"]:
        schema = _closed(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        kinds[f"{spec['group']}/{version['name']} {spec['names']['kind']}"] = _plain(schema)
    return crd["metadata"]["name"], {"kinds": kinds, "$defs": {}}


def _write(name: str, found: Schema) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")


def main() -> None:
    """Write the schemas."""
    FOLDER.mkdir(exist_ok=True)
    _write("kubernetes", _of_kubernetes(Path(sys.argv[1])))
    for file in sys.argv[2:]:
        _write(*_of_crd(Path(file)))


if __name__ == "__main__":
    main()
