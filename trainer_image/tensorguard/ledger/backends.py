"""Which ledger a rank 0 writes to: the file in its run's folder, or the object that its job has in a cluster.

`training.worker` claims what comes out of here. In a cluster it also asks, at each charge, whether the job is to be
suspended: a person sets `spec.suspend`, and no program but this one looks at it in time to seal a checkpoint.
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
POD_UID = "TENSAFE_POD_UID"
"""Environment variable of each worker's container: the UID of its pod, by the downward API."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerLocation:
    """Where a job in a cluster keeps its ledger: plain strings, which travel to the workers."""

    namespace: str
    job: str
    ledger: str
    ledger_uid: str


def open_ledger(directory: Path, place: LedgerLocation | None) -> Ledger:
    """A handle on the run's ledger; nothing is claimed yet."""
    if place is None:
        return FileLedger(directory, lock_wait_seconds=LOCK_WAIT_SECONDS)
    from tensorguard.ledger.kubernetes import KubernetesLedger

    return KubernetesLedger(
        _api(),
        namespace=place.namespace,
        name=place.ledger,
        uid=place.ledger_uid,
        pod_uid=os.environ[POD_UID],
    )


class SuspendFlag:
    """Whether the job's author asks it to stop. Without a cluster nobody can ask here: `StopSignal` is another way."""

    def __init__(self, place: LedgerLocation | None) -> None:
        self._place = place
        self._api: client.CustomObjectsApi | None = None

    def __bool__(self) -> bool:
        """One short question to the API server; no answer counts as no, since the charge that follows will wait."""
        if self._place is None:
            return False
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        from tensafe_api.resources.job import GROUP, VERSION

        self._api = self._api or _api()
        try:
            job = self._api.get_namespaced_custom_object(
                GROUP, VERSION, self._place.namespace, "tensafetrainingjobs", self._place.job, _request_timeout=5.0
            )
        except (client.ApiException, HTTPError, OSError) as error:
            log.warning("cannot see whether the job is suspended (%s)", type(error).__name__)
            return False
        return bool(isinstance(job, dict) and job.get("spec", {}).get("suspend"))


def _api() -> client.CustomObjectsApi:
    """The API server as this pod's service account sees it, or as a kubeconfig says where KUBECONFIG names one."""
    from kubernetes import client, config

    settings: Any = client.Configuration()
    load: Any = config.load_incluster_config
    if kubeconfig := os.environ.get("KUBECONFIG"):
        load = partial(config.load_kube_config, config_file=kubeconfig)
    load(client_configuration=settings)
    return client.CustomObjectsApi(client.ApiClient(settings))
