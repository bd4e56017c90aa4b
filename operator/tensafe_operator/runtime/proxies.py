"""Finds the proxy for an API server in the environment (`HTTPS_PROXY`, `NO_PROXY`), as kubectl does."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

_PORTS = {"http": 80, "https": 443}


def proxy_of_environment(server: str) -> str | None:
    """The proxy that the environment names for a URL. None if it names none, or the server is on this machine, as that
    of kind and minikube is: no proxy reaches it.
    """
    url, proxies = urlsplit(server), getproxies_environment()
    proxy, host = proxies.get(url.scheme), url.hostname
    if not proxy or not host or _is_here(host):
        return None
    port = url.port or _PORTS.get(url.scheme, 0)
    if any(_matches(entry.strip().lower(), host, port) for entry in proxies.get("no", "").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of `NO_PROXY` names a host: *, an address, a network, a domain with all below it, or `.domain`
    for those below it alone; all but a network may have a port.
    """
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:  # one of them is a name, or the entry has a port
        pass
    name, colon, own_port = entry.rpartition(":")
    if colon and own_port.isdecimal():
        if int(own_port) != port:
            return False
        entry = name.strip("[]")
    entry = entry.removeprefix("*")
    if not entry:
        return False
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")
