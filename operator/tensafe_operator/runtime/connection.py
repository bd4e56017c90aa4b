"""The way to the API server: of the pod that this runs in, or of a kubeconfig file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes.aio import client, config

from tensafe_operator.settings import ConfigurationError

KUBECONFIG = "KUBECONFIG"


async def connect() -> client.ApiClient:
    """To the API server as the pod's service account sees it, or as KUBECONFIG says.

    Raises:
        ConfigurationError: where neither says anything that can be used.
    """
    settings = client.Configuration()
    untyped: Any = config
    paths = os.environ.get(KUBECONFIG)
    mend = f"set {KUBECONFIG} to the path of a kubeconfig file"
    if paths and not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise ConfigurationError(f"{KUBECONFIG} is {paths}, and no file is there: {mend}.")
    try:
        if paths:
            await untyped.load_kube_config(paths, client_configuration=settings)
        else:
            untyped.load_incluster_config(client_configuration=settings)
        if not urlsplit(settings.host).hostname:
            raise config.ConfigException("Expected key server in the cluster of the current context")
        return client.ApiClient(settings)
    except Exception as error:  # whatever reading somebody's file may lead to
        if paths:
            raise ConfigurationError(
                f"{KUBECONFIG} is {paths}, which cannot be used ({said(error)}): {mend}."
            ) from error
        why = str(error).rstrip(".")
        raise ConfigurationError(f"{KUBECONFIG} is not set, and this is no pod ({why}): {mend}.") from error


def said(error: Exception) -> str:
    """What an error says, as far as it is sure not to quote a file: a kubeconfig holds a secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    missing = re.search(r"Expected (key|object with name) \S+", str(error))
    return missing[0] if missing else type(error).__name__
