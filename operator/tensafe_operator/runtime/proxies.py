"""Finds the proxy for an API server in the environment (`HTTPS_PROXY`, `NO_PROXY`), as kubectl does."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies_environment


def proxy_of_environment(server: str) -> str | None:
    """The proxy that the environment names for a URL. None if it names none, or the server is on this machine, as that
    of kind and minikube is: no proxy reaches it.
    """
    from kubernetes.client.rest import should_bypass_proxies  # here, because `kubectl tensafe --help` needs none of it

    url, proxies = urlsplit(server), getproxies_environment()
    proxy, direct = proxies.get(url.scheme), proxies.get("no", "").replace("*.", ".")  # the package knows no *.domain
    if not proxy or _is_here(url.hostname or "") or should_bypass_proxies(server, direct):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
