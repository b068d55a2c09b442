"""How hosts are named, and which host a name means."""

import ipaddress

import pytest

from fumehood.core.environment import proxy_variables
from fumehood.core.hosts import (
    Hosts,
    canonical_host,
    forwards,
    names_for_proxy,
    parse_authority,
    parse_host,
    proxy_port,
    special_kind,
)
from fumehood.core.policy import FULL, HOSTS, NONE, OFFLINE, Policy, decide_network
from fumehood.errors import BadRequest


@pytest.mark.parametrize(
    ("rule", "host", "port"),
    [
        ("example.org", "example.org", 1),
        ("example.org:443", "example.org", 443),
        ("Example.ORG.:443", "example.org", 443),
        ("*.example.org", "a.b.example.org", 443),
        ("example.org:8000-8010", "example.org", 8005),
        ("*", "example.org", 443),
        ("*:443", "example.org", 443),
        ("10.0.0.0/8", "10.1.2.3", 80),
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("::1", "::1", 80),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1", 80),
        ("bücher.example", "xn--bcher-kva.example", 443),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", 443),
    ],
)
def test_a_rule_allows_what_it_names(rule, host, port):
    assert Hosts([rule]).allows(canonical_host(host), port)


@pytest.mark.parametrize(
    ("rule", "host", "port"),
    [
        ("example.org", "example.org.evil.com", 443),
        ("example.org", "notexample.org", 443),
        ("example.org", "www.example.org", 443),
        ("*.example.org", "example.org", 443),
        ("*.example.org", "evilexample.org", 443),
        ("example.org:443", "example.org", 80),
        ("example.org:8000-8010", "example.org", 8011),
        ("10.0.0.0/8", "11.1.2.3", 80),
        ("*.example", "10.0.0.1", 80),
        ("127.0.0.1:80", "127.0.0.2", 80),
        ("*:443", "example.org", 80),
    ],
)
def test_a_rule_allows_nothing_else(rule, host, port):
    assert not Hosts([rule]).allows(canonical_host(host), port)


@pytest.mark.parametrize(
    "text",
    ["", ":80", "host:", "host:0", "host:65536", "host:80-70", "a b", "a\0b", "a\nb", "exa*mple.org", "*example.org",
     "*.*.org", "http://example.org", "user@example.org", "example.org/path", "10.0.0.1/8", "127.1", "0x7f.1",
     "2130706433", "1.2.3", "fe80::1%lo", "[::1", "*.1.2.3.4", "a..b", "-" * 64 + ".org", "host:\uff18\uff10"],
)  # fmt: skip
def test_what_is_no_host_is_refused_by_name(text):
    with pytest.raises(BadRequest, match="is not a host"):
        parse_host(text)


@pytest.mark.parametrize("host", ["faß.de", "FAẞ.de", "βόλος.com"])
def test_an_international_name_that_is_two_hosts_is_refused(host):
    with pytest.raises(BadRequest, match="one host by the older rules"):
        parse_host(f"{host}:443")


def test_a_letter_that_pythons_fold_differently_is_never_another_host():
    try:
        assert canonical_host("Ⱥb.example") == canonical_host("ⱥb.example")
    except ValueError:
        return  # 3.11.2 leaves this letter as it is, 3.11.7 does not


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("BÜCHER.example", "xn--bcher-kva.example"), ("пример.испытание", "xn--e1afmkfd.xn--80akhbyknj4f"),
        ("例え。テスト", "xn--r8jz45g.xn--zckzah"), ("ελλάδα.gr", "xn--hxakic4aa.gr"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"), ("İstanbul.example", "xn--istanbul-o0e.example"),
        ("xn--fa-hia.de", "xn--fa-hia.de"), ("\uff45xample\uff0eorg", "example.org"), ("ΒΌΛΟΣ.com", "xn--nxasmq6b.com"),
    ],
)  # fmt: skip
def test_other_international_names_are_as_ever(host, plain):
    assert canonical_host(host) == plain


@pytest.mark.parametrize("host", ["127.1", "0177.0.0.1", "0x7f000001", "2130706433", "127.0.0.1.",
                                  "\uff11\uff12\uff17.0.0.1"])
def test_other_spellings_of_an_address_are_that_address_or_nothing(host):
    try:
        found = canonical_host(host)
    except ValueError:
        return
    assert found == "127.0.0.1"


@pytest.mark.parametrize("text", ["a@b:80", "host", "host:", ":80", "host:80:90x", "ho st:80", "host:+80", "host:8 0"])
def test_an_authority_that_can_be_read_in_two_ways_is_none(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_authority(text)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"), ("127.8.8.8", "loopback"), ("::1", "loopback"), ("0.0.0.0", "unspecified"),
        ("::", "unspecified"), ("10.0.0.1", "private"), ("172.31.0.1", "private"), ("192.168.1.1", "private"),
        ("100.64.0.1", "private"), ("fd00::1", "private"), ("169.254.169.254", "link-local"), ("fe80::1", "link-local"),
        ("224.0.0.1", "multicast"), ("ff02::1", "multicast"), ("255.255.255.255", "reserved"),
        ("::ffff:127.0.0.1", "loopback"), ("::ffff:169.254.169.254", "link-local"), ("::127.0.0.1", "loopback"),
        ("64:ff9b:1:7f00:0:100::", "private"), ("::ffff:0:a9fe:a9fe", "link-local"),
        ("64:ff9b::7f00:1", "loopback"), ("64:ff9b::a9fe:a9fe", "link-local"), ("2002:7f00:1::", "loopback"),
        ("8.8.8.8", ""), ("2606:4700::1", ""), ("172.32.0.1", ""),
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_known_however_they_are_wrapped(address, kind):
    assert special_kind(ipaddress.ip_address(address)) == kind


def test_localhost_names_this_machine_and_a_star_does_not():
    own = ipaddress.ip_address("127.0.0.1")
    assert Hosts(["localhost:80"]).names_address(own, 80)
    assert not Hosts(["localhost:80"]).names_address(own, 81)
    assert not Hosts(["*", "*.example.org", "example.org"]).names_address(own, 80)


def test_without_a_wish_there_is_no_network():
    assert decide_network("none", (), Policy()) is OFFLINE


@pytest.mark.parametrize(
    ("mode", "hosts", "policy", "expected", "to_ask"),
    [
        ("full", (), Policy(), FULL, 1),
        ("none", (), Policy(network="full"), FULL, 0),
        ("none", ("a.org",), Policy(), HOSTS, 1),
        ("none", ("a.org",), Policy(hosts=("a.org",)), HOSTS, 0),
        ("none", ("x.a.org:443",), Policy(hosts=("*.a.org",)), HOSTS, 0),
        ("none", ("a.org",), Policy(hosts=("a.org:443",)), HOSTS, 1),
        ("none", ("localhost:80",), Policy(hosts=("*",)), HOSTS, 1),
        ("none", ("10.0.0.1",), Policy(hosts=("*",)), HOSTS, 1),
        ("none", (), Policy(hosts=("a.org",)), HOSTS, 0),
        ("none", (), Policy(network="ask"), NONE, 0),
    ],
)
def test_only_what_the_person_has_not_named_is_asked_for(mode, hosts, policy, expected, to_ask):
    network = decide_network(mode, hosts, policy)
    assert (network.mode, len(network.to_ask)) == (expected, to_ask)


def test_ports_of_this_machine_are_forwarded_and_others_go_by_the_proxy():
    found = forwards(("localhost:80", "127.0.0.1:81-82", "example.org:83"))
    assert [(each.address, each.port, each.host) for each in found] == [
        ("127.0.0.1", 80, "localhost"), ("::1", 80, "localhost"), ("127.0.0.1", 81, "127.0.0.1"),
        ("127.0.0.1", 82, "127.0.0.1"),
    ]  # fmt: skip
    assert names_for_proxy(("localhost:80",)) == ()
    assert "localhost" in names_for_proxy(("localhost",))
    assert "localhost" not in proxy_variables(1, names_for_proxy(("localhost",)), {})["NO_PROXY"]
    assert proxy_port(forwards(("127.0.0.1:61080",))) == 61081
