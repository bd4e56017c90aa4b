"""The connection to the API server: with the service account of the pod, or with a kubeconfig file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes.aio import client, config

from tensafe_operator.runtime.errors import ConfigurationError

KUBECONFIG = "KUBECONFIG"


async def connect() -> client.ApiClient:
    """A client for the API server that KUBECONFIG names, else for the one that the pod runs on.

    Raises:
        ConfigurationError: if neither is usable.
    """
    settings = client.Configuration()
    untyped: Any = config
    paths = os.environ.get(KUBECONFIG)
    fix = f"set {KUBECONFIG} to the path of a kubeconfig file"
    if paths and not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise ConfigurationError(f"{KUBECONFIG} is {paths}, which is not a file: {fix}.")
    try:
        if paths:
            await untyped.load_kube_config(paths, client_configuration=settings)
        else:
            untyped.load_incluster_config(client_configuration=settings)
        if not urlsplit(settings.host).hostname:
            raise config.ConfigException("Expected key server in the cluster of the current context")
        return client.ApiClient(settings)
    except Exception as error:  # reading an arbitrary file can raise any error
        if paths:
            found = safe_description(error)
            raise ConfigurationError(f"{KUBECONFIG} is {paths}, which cannot be used ({found}): {fix}.") from error
        found = str(error).rstrip(".")
        raise ConfigurationError(f"{KUBECONFIG} is not set, and this is not a pod ({found}): {fix}.") from error


def safe_description(error: Exception) -> str:
    """A description of an error that cannot quote the content of a file: a kubeconfig holds a secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    missing = re.search(r"Expected (key|object with name) \S+", str(error))
    return missing[0] if missing else type(error).__name__
