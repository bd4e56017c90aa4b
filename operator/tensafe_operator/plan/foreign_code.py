"""Foreign code: a job whose variables or volumes would run other code than its image's is not started.

Which images a job may use is an administrator's decision (`limits.images` of the chart), and workers hold every record.
The variables here only serve to run other code, and the directories hold the code of the system and of the image. No
list of them is complete: `limits.env` and `limits.mountPaths` of the chart allow what is known instead. A profile is
the administrator's own, and may set both.

A job is refused before its ledger is opened. One whose ledger is open is refused when its next attempt starts, so that
an attempt that an earlier release started runs to its end.
"""

from __future__ import annotations

import re

from tensafe_api.resources.cluster import Cluster
from tensafe_operator.children.foreign_code import (
    FOREIGN_CODE_VARIABLES,
    FOREIGN_SERVER_VARIABLES,
    INJECTION_VARIABLES,
)

_DIRECTORIES = (
    *("/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/alternatives", "/etc/profile.d"),
    *("/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/etc/crypto-policies"),  # OpenSSL loads libraries from it
    "/opt/pyca",  # the same, for the OpenSSL in the package cryptography
    *("/opt/tensafe", "/home/tensafe"),  # the packages, and the working directory, from which Python imports too
)
_CACHES = "/home/tensafe/.cache"
_PACKAGES = re.compile(r"/((site|dist)-packages|(lib|etc)/python\d+(\.\d+)?)/")
"""Folders from which Python imports, in any image. Debian's python3.11 also imports a file in /etc/python3.11."""
_REFUSED_VARIABLES = (*FOREIGN_CODE_VARIABLES, *INJECTION_VARIABLES)


def find_foreign_code(cluster: Cluster) -> str:
    """Return what would run other code than the image's; empty where nothing would.

    Args:
        cluster: as the author of the job wrote it, without the values of a profile.
    """
    variables = [each.name for each in cluster.env if each.name in _REFUSED_VARIABLES]
    if variables:
        fix = "remove it, and put the code into the image"
        return f"spec.cluster.env: {', '.join(variables)}: would run other code than that of the image: {fix}"
    servers = [each.name for each in cluster.env if each.name in FOREIGN_SERVER_VARIABLES]
    if servers:
        return f"spec.cluster.env: {', '.join(servers)}: names the API server with the job's ledger: remove it"
    paths = [each.mount_path for each in cluster.volumes if _holds_code(each.mount_path)]
    if paths:
        fix = "write a mountPath such as /mnt/data"
        return f"spec.cluster.volumes: {', '.join(paths)}: would replace code of the image or the system: {fix}"
    return ""


def _holds_code(path: str) -> bool:
    """Return whether a volume at this path covers, or is inside of, a directory from which code is run."""
    if f"{path}/".startswith(f"{_CACHES}/"):
        return False
    covered = any(f"{place}/".startswith(f"{path}/") or f"{path}/".startswith(f"{place}/") for place in _DIRECTORIES)
    return covered or _PACKAGES.search(f"{path}/") is not None
