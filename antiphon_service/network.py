"""Networks for limits per address: clients of one IPv6 network count as one client."""

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_IPV6_PREFIX_BITS: Final = 64
"""The prefix length of an IPv6 client's network: a client can use every address of its /64 network."""


def plain(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, and any other address unchanged."""
    return (address.version == 6 and address.ipv4_mapped) or address


def counted_as(address: Address) -> str:
    """Return the text under which a `plain` address is counted: an IPv4 address, or an IPv6 /64 network."""
    if address.version == 6:
        return str(ip_network((address, _IPV6_PREFIX_BITS), strict=False))
    return str(address)
