"""URLs and addresses to which webhooks may be sent."""

from ipaddress import ip_address

import pytest

from batchwright.rules.webhooks.ssrf_rules import check_address, check_url, parse_networks

FORBIDDEN = {
    "127.0.0.1": "loopback",
    "127.8.9.10": "loopback",
    "0.0.0.0": "this host",
    "10.1.2.3": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "169.254.169.254": "metadata of most providers",
    "169.254.170.2": "metadata of containers",
    "100.64.0.1": "shared by carriers",
    "100.100.100.200": "metadata of Alibaba",
    "168.63.129.16": "Azure's own",
    "192.0.0.192": "metadata of Oracle",
    "192.0.2.1": "documentation",
    "198.18.0.1": "benchmarks",
    "224.0.0.1": "multicast",
    "239.255.255.250": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "broadcast",
    "::": "this host",
    "::1": "loopback",
    "fe80::1": "link-local",
    "fc00::1": "unique local",
    "fd00:ec2::254": "metadata of AWS",
    "ff02::1": "multicast",
    "2001:db8::1": "documentation",
    "::ffff:127.0.0.1": "mapped loopback",
    "::ffff:10.0.0.1": "mapped private",
    "::ffff:169.254.169.254": "mapped metadata",
    "::127.0.0.1": "compatible loopback",
    "::a9fe:a9fe": "compatible metadata",
    "64:ff9b::7f00:1": "NAT64 of loopback",
    "64:ff9b::169.254.169.254": "NAT64 of metadata",
    "64:ff9b:1::1": "local NAT64",
    "2002:7f00:1::": "6to4 of loopback",
    "2002:a9fe:a9fe::1": "6to4 of metadata",
    "2002:808:808::1": "6to4",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "Teredo",
    "3fff::1": "documentation",
    "fec0::1": "site-local, deprecated",
}
ALLOWED = ("8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8")

BAD_URLS = {
    "": "begin with https",
    "example.com/hook": "begin with https",
    "//example.com": "begin with https",
    "ftp://example.com": "begin with https",
    "file:///etc/passwd": "begin with https",
    "gopher://example.com": "begin with https",
    "javascript:alert(1)": "begin with https",
    "https://": "no host",
    "https:///path": "no host",
    "https://user@example.com": "user name",
    "https://user:secret@example.com": "user name",
    "https://:secret@example.com": "user name",
    "https://@example.com": "user name",
    "https://example.com#part": "fragment",
    "https://example.com:0/": "port",
    "https://example.com:65536/": "cannot be read",
    "https://example.com:port/": "cannot be read",
    "https://[::1": "cannot be read",
    "https://exa mple.com": "printable ASCII",
    "https://example.com\\@10.0.0.1": "printable ASCII",
    "https://example.com/\r\nhost: other": "printable ASCII",
    "https://münchen.example": "printable ASCII",
    "https://example.com/" + "x" * 2048: "over 2048",
    "http://127.0.0.1:8000/": "not a public one",
    "http://127.1/": "is a number",
    "http://2130706433/": "is a number",
    "http://0177.0.0.1/": "is a number",
    "http://0x7f.0.0.0x1/": "is a number",
    "http://1.2.3.4.5/": "is a number",
    "http://[::1]/": "not a public one",
    "http://[::ffff:127.0.0.1]/": "not a public one",
    "http://[fe80::1%25eth0]/": "not a public one",
    "http://169.254.169.254/latest/meta-data": "not a public one",
}


@pytest.mark.parametrize("address", FORBIDDEN)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not a public one"):
        check_address(ip_address(address), [])


@pytest.mark.parametrize("address", ALLOWED)
def test_public_addresses_are_allowed(address: str) -> None:
    check_address(ip_address(address), [])


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"])
def test_a_setting_allows_networks(address: str) -> None:
    check_address(ip_address(address), parse_networks(["10.1.0.0/16"]))
    with pytest.raises(ValueError, match="not a public one"):
        check_address(ip_address(address), parse_networks(["10.2.0.0/16", "fd00::/8"]))


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(ValueError, match=BAD_URLS[url]) as refused:
        check_url(url, [])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://example.com", "http://example.com:8080/a?b=c", "https://8.8.8.8/"])
def test_http_and_https_urls_are_allowed(url: str) -> None:
    assert check_url(url, []).geturl() == url


def test_only_networks_are_networks() -> None:
    with pytest.raises(ValueError, match="example"):
        parse_networks(["example.com"])
