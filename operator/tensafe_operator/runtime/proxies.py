"""Finds the proxy for an API server in the environment (`HTTPS_PROXY`, `NO_PROXY`), as kubectl does."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_of_environment(server: str) -> str | None:
    """The proxy that the environment names for a URL. None if it names none, or the server is on this machine, as that
    of kind and minikube is: no proxy reaches it. `NO_PROXY` may name networks, such as that of the cluster's Services.
    """
    url, proxies = urlsplit(server), getproxies()
    if not url.hostname or _is_direct(url.hostname, proxies.get("no", "")) or proxy_bypass(url.hostname):
        return None
    return proxies.get(url.scheme)


def _is_direct(host: str, no_proxy: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or any(address in network for network in _networks(no_proxy))


def _networks(no_proxy: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for entry in no_proxy.split(","):
        with contextlib.suppress(ValueError):  # a name
            yield ipaddress.ip_network(entry.strip(), strict=False)
