"""Bill of materials (CycloneDX 1.6, JSON) of an image: its Python packages and its Debian packages.

Run `python sbom.py NAME` in the image, with the Python of its environment. The same packages give the same
output: it contains no date and no random number.
"""

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

STATUS = Path("/var/lib/dpkg/status")


def component(name: str, version: str, purl: str, license_text: str = "") -> dict[str, Any]:
    """Return the CycloneDX component of a package."""
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if license_text:
        found["licenses"] = [{"license": {"name": license_text}}]
    return found


def python_packages() -> Iterator[dict[str, Any]]:
    """Yield the packages of this Python's environment."""
    for each in metadata.distributions():
        given = each.metadata
        name = re.sub(r"[-_.]+", "-", given["Name"]).lower()
        license_text = given.get("License-Expression") or (given.get("License") or "").partition("\n")[0]
        yield component(name, each.version, f"pkg:pypi/{name}@{quote(each.version)}", license_text)


def debian_packages(status: str) -> Iterator[dict[str, Any]]:
    """Yield the installed packages of dpkg's `status` file."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={fields['Architecture']}"
            yield component(name, version, purl)


def bill(image: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the CycloneDX document."""
    version = metadata.version("antiphon")
    subject = {"type": "container", "bom-ref": image, "name": image, "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": sorted(components, key=lambda each: str(each["purl"])),
    }


if __name__ == "__main__":
    found = [*python_packages()]
    if STATUS.exists():
        found += debian_packages(STATUS.read_text())
    json.dump(bill(sys.argv[1], found), sys.stdout, indent=1)
    print()
