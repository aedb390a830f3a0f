"""The network that an IP address counts as in limits per address."""

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_BITS: Final = 64
"""An IPv6 client is a site: whoever has one address there has all of them."""


def plain(address: Address) -> Address:
    """Return an IPv4 address that came over an IPv6 socket, as itself."""
    return (address.version == 6 and address.ipv4_mapped) or address


def counted_as(address: Address) -> str:
    """Return what is counted of an address that is `plain`."""
    if address.version == 6:
        return str(ip_network((address, _BITS), strict=False))
    return str(address)
