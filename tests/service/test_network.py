"""Tests of the network under which an address is counted."""

from ipaddress import ip_address

from antiphon_service.network import counted_as, plain


def test_ipv6_network_counts_as_one_client_and_mapped_ipv4_as_ipv4() -> None:
    one, same, other = ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1")
    assert counted_as(ip_address(one)) == counted_as(ip_address(same))
    assert counted_as(ip_address(one)) != counted_as(ip_address(other))
    assert counted_as(ip_address("203.0.113.5")) == "203.0.113.5"
    assert counted_as(plain(ip_address("::ffff:203.0.113.5"))) == "203.0.113.5"
