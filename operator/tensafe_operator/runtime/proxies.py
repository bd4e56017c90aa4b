"""Finds the proxy for an API server in the environment (`HTTPS_PROXY`, `NO_PROXY`), as kubectl does."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_of_environment(server: str) -> str | None:
    """The proxy that the environment names for a URL. None if it names none, or the server is on this machine, as that
    of kind and minikube is: no proxy reaches it.
    """
    url = urlsplit(server)
    if not url.hostname or _is_here(url.hostname) or proxy_bypass(url.hostname):
        return None
    return getproxies().get(url.scheme)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
