"""The network that an IP address counts as in limits per address."""

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_BITS: Final = 64
"""The prefix length of a client with IPv6: a client that has one address of a site has all of them."""


def plain(address: Address) -> Address:
    """Return an IPv4 address that came over an IPv6 socket as plain IPv4."""
    return (address.version == 6 and address.ipv4_mapped) or address


def counted_as(address: Address) -> str:
    """Return the network that a `plain` address counts as."""
    if address.version == 6:
        return str(ip_network((address, _BITS), strict=False))
    return str(address)
