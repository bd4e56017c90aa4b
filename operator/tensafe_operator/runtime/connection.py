"""The connection to the API server: with the service account of the pod, or with a kubeconfig file.

kopf reads both, so its watch streams and the requests of `ApiClient` use the same address and the same credentials.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kopf

from tensafe_operator.runtime.errors import ConfigurationError

KUBECONFIG = "KUBECONFIG"
TOKEN_SECONDS = 60.0
"""For how long the token of the service account is used before its file is read again. The kubelet replaces it."""


@dataclass(frozen=True)
class Connection:
    """Where the API server is, and what a request to it needs.

    Attributes:
        server: the URL of the API server, without a path.
        authorization: returns the Authorization header of a request that is sent now; empty for none.
        ssl_context: what TLS connections use.
        proxy: URL of the proxy; None: the one that the environment names, if any.
    """

    server: str
    authorization: Callable[[], str] = str
    ssl_context: ssl.SSLContext | None = None
    proxy: str | None = None


def connect() -> Connection:
    """The connection to the API server that KUBECONFIG names, else to the one that the pod runs on.

    Raises:
        ConfigurationError: if neither is usable.
    """
    paths = os.environ.get(KUBECONFIG)
    fix = f"set {KUBECONFIG} to the path of a kubeconfig file"
    if paths and not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise ConfigurationError(f"{KUBECONFIG} is {paths}, which is not a file: {fix}.")
    try:
        info = login(settings=kopf.OperatorSettings())
        if info is None:
            raise ValueError("it has no service account")
        return _connection(info)
    except Exception as error:  # reading an arbitrary file can raise any error
        if paths:
            found = safe_description(error)
            raise ConfigurationError(f"{KUBECONFIG} is {paths}, which cannot be used ({found}): {fix}.") from error
        raise ConfigurationError(f"{KUBECONFIG} is not set, and this is not a pod ({error}): {fix}.") from error


def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """Where the API server is, with credentials; kopf calls this for its streams. None outside a pod.

    In a pod, kopf by default resolves the API server's name by DNS. During a DNS outage it would receive no events.
    """
    if os.environ.get(KUBECONFIG):
        return kopf.login_with_kubeconfig(**arguments)
    account = kopf.login_with_service_account(**arguments)
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if account is None or not host:
        return account
    host = f"[{host}]" if ":" in host else host
    return replace(account, server=f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}")


def safe_description(error: Exception) -> str:
    """A description of an error that cannot quote the content of a file: a kubeconfig holds a secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, _UnusableError) else type(error).__name__


class _UnusableError(ValueError):
    """What a kubeconfig lacks. The message quotes nothing."""


def _connection(info: kopf.ConnectionInfo) -> Connection:
    server = (info.server or "").rstrip("/")
    address = urlsplit(server)
    if not address.hostname:
        raise _UnusableError("expected key server in the cluster of the current context")
    certificate = info.certificate_path or info.certificate_data
    if address.scheme == "https" and not (info.token or info.username or certificate):
        raise _UnusableError("expected a token, a password or a client certificate; plugins are not run")
    context = info.as_ssl_context() if address.scheme == "https" else None
    return Connection(server, _authorization(info), context, info.proxy_url)


def _authorization(info: kopf.ConnectionInfo) -> Callable[[], str]:
    """The Authorization header: that of a pod is read again from time to time, that of a kubeconfig never changes."""
    headers, read = info.as_http_headers(), time.monotonic()

    def fixed() -> str:
        return headers.get("Authorization", "")

    def current() -> str:
        nonlocal headers, read
        if time.monotonic() - read > TOKEN_SECONDS:
            account = kopf.login_with_service_account(settings=kopf.OperatorSettings())
            headers, read = (account or info).as_http_headers(), time.monotonic()
        return fixed()

    return fixed if os.environ.get(KUBECONFIG) else current
