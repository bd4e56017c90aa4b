"""The connection to the API server: with the service account of the pod, or with a kubeconfig file.

The `kubernetes` package reads both, and runs the credential plugins of a kubeconfig. The streams of kopf get the same
address, credentials and proxy as the requests of `ApiClient`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kopf
from kubernetes.aio import config
from kubernetes.aio.client import Configuration, rest

from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.proxies import proxy_of_environment

KUBECONFIG = "KUBECONFIG"
REFRESH_SECONDS = 60.0
"""How often the credentials of a kubeconfig are read again. Its plugin runs again if its token ends within 5 minutes,
or has no end.
"""
log = logging.getLogger(__name__)


async def connect() -> Configuration:
    """The connection to the API server that KUBECONFIG names, else to the one that the pod runs on.

    Raises:
        ConfigurationError: if neither is usable.
    """
    paths = os.environ.get(KUBECONFIG)
    fix = f"set {KUBECONFIG} to the path of a kubeconfig file"
    if paths and not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise ConfigurationError(f"{KUBECONFIG} is {paths}, which is not a file: {fix}.")
    found: Any = Configuration(host="")  # its attributes have wrong types
    try:
        if paths:
            loader = await config.load_kube_config(paths, client_configuration=found)
            found.refresh_api_key_hook = _Refresh(loader)
        else:
            config.load_incluster_config(client_configuration=found)
        _check(found)
    except Exception as error:  # reading an arbitrary file can raise any error
        if paths:
            reason = safe_description(error)
            raise ConfigurationError(f"{KUBECONFIG} is {paths}, which cannot be used ({reason}): {fix}.") from error
        raise ConfigurationError(f"{KUBECONFIG} is not set, and this is not a pod ({error}): {fix}.") from error
    found.proxy = found.proxy or proxy_of_environment(found.host)
    # aiohttp would ignore the networks in NO_PROXY, and read ~/.netrc in a thread before each request.
    found.client_session_kwargs = {"trust_env": False}
    return found  # type: ignore[no-any-return]


async def login(**_: Any) -> kopf.ConnectionInfo:
    """What kopf needs for its streams. kopf calls this at its start, and when the API server refuses its token."""
    found = await connect()
    scheme, _blank, token = found.api_key.get("BearerToken", "").partition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        proxy_url=found.proxy,
    )


def safe_description(error: Exception) -> str:
    """A description of an error that cannot quote the content of a file: a kubeconfig holds a secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    missing = re.search(r"Expected (key|object with name) \S+", str(error))  # by the `kubernetes` package
    if missing:
        return missing[0]
    return str(error) if isinstance(error, _UnusableError) else type(error).__name__


class _UnusableError(ValueError):
    """What a kubeconfig lacks. The message quotes nothing."""


def _check(found: Configuration) -> None:
    address = urlsplit(found.host)
    if not address.hostname:
        raise _UnusableError("expected key server in the cluster of the current context")
    if address.scheme == "https" and not (found.api_key or found.cert_file):
        raise _UnusableError("expected a token, a password, a client certificate or a plugin that gives one")
    rest.RESTClientObject(found)  # reads the certificates


class _Refresh:
    """Reads the credentials of a kubeconfig again from time to time. No request waits for it: a plugin may be slow, and
    the token in use is still valid for some minutes.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._due = time.monotonic() + REFRESH_SECONDS
        self._task: asyncio.Task[None] | None = None

    def __call__(self, configuration: Configuration) -> None:
        """Called by the `kubernetes` package before each request."""
        now = time.monotonic()
        if now < self._due or (self._task is not None and not self._task.done()):
            return
        self._due = now + REFRESH_SECONDS
        self._task = asyncio.create_task(self._read(configuration))

    async def _read(self, configuration: Configuration) -> None:
        try:
            await self._loader.load_and_set(configuration)
        except Exception as error:  # as in `connect`
            log.warning("the credentials in %s cannot be read again: %s", KUBECONFIG, safe_description(error))
