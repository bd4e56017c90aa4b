"""Opens the ledger that rank 0 writes to: a file in the run's folder, or the job's PrivacyLedger in a cluster.

`training.worker` acquires the ledger. In a cluster it also reads, before each charge, whether the job is to be
suspended (`SuspendFlag`): a user sets `spec.suspend`, and only this process reads it in time to save a checkpoint.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorguard.ledger.contract import Ledger
from tensorguard.ledger.file import FileLedger

if TYPE_CHECKING:
    from kubernetes import client

LOCK_WAIT_SECONDS = 30.0
"""How long a local run waits for the lock of a run that is terminating."""
POD_UID = "TENSAFE_POD_UID"
"""Environment variable of each worker's container: the UID of its pod, from the downward API."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerLocation:
    """The ledger of a job in a cluster. Plain strings, so that it can be sent to the workers."""

    namespace: str
    job: str
    ledger: str
    ledger_uid: str


def open_ledger(directory: Path, location: LedgerLocation | None) -> Ledger:
    """The run's ledger, not yet acquired. Without a `location` it is the file in `directory`."""
    if location is None:
        return FileLedger(directory, lock_wait_seconds=LOCK_WAIT_SECONDS)
    from tensorguard.ledger.kubernetes import KubernetesLedger

    return KubernetesLedger(
        _api(),
        namespace=location.namespace,
        name=location.ledger,
        uid=location.ledger_uid,
        pod_uid=os.environ[POD_UID],
    )


class SuspendFlag:
    """Whether the author of the job has suspended it (`spec.suspend`). Always false without a cluster, where
    `StopSignal` stops a run.
    """

    def __init__(self, location: LedgerLocation | None) -> None:
        self._location = location
        self._api: client.CustomObjectsApi | None = None

    def __bool__(self) -> bool:
        """Read the job once, with a short timeout. No answer counts as false: the charge that follows waits."""
        if self._location is None:
            return False
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        from tensafe_api.resources.job import GROUP, VERSION

        self._api = self._api or _api()
        try:
            job = self._api.get_namespaced_custom_object(
                GROUP,
                VERSION,
                self._location.namespace,
                "tensafetrainingjobs",
                self._location.job,
                _request_timeout=5.0,
            )
        except (client.ApiException, HTTPError, OSError) as error:
            log.warning("cannot read whether the job is suspended (%s)", type(error).__name__)
            return False
        return bool(isinstance(job, dict) and job.get("spec", {}).get("suspend"))


def _api() -> client.CustomObjectsApi:
    """A client with this pod's service account, or with the kubeconfig that KUBECONFIG names."""
    from kubernetes import client, config

    settings: Any = client.Configuration()
    load: Any = config.load_incluster_config
    if kubeconfig := os.environ.get("KUBECONFIG"):
        load = partial(config.load_kube_config, config_file=kubeconfig)
    load(client_configuration=settings)
    return client.CustomObjectsApi(client.ApiClient(settings))
