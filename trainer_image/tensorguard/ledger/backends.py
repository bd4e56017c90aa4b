"""Opens the ledger that rank 0 writes to: a file in the run's folder, or the job's PrivacyLedger in a cluster.

`training.worker` acquires the ledger. In a cluster it also reads the job's object (`JobObject`): before each charge,
whether a user has set `spec.suspend`, since only this process reads it in time to save a checkpoint; and for each
statement, which image the operator has found in the pods.
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


class JobObject:
    """The TenSafeTrainingJob of this run, as the API server has it. Without a cluster there is none."""

    def __init__(self, location: LedgerLocation | None) -> None:
        self._location = location
        self._api: client.CustomObjectsApi | None = None

    def is_suspended(self) -> bool:
        """Whether the author has suspended the job (`spec.suspend`). No answer counts as false: the charge that follows
        waits. Without a cluster it is always false, because `StopSignal` stops a run.
        """
        return bool(self._read("spec").get("suspend"))

    def image(self) -> str | None:
        """The image of the pods, with its digest once the operator knows it; None where there is no answer."""
        image = (self._read("status").get("resolved") or {}).get("image")
        return image if isinstance(image, str) else None

    def _read(self, part: str) -> dict[str, Any]:
        """One part of the job, which is read once and with a short timeout; empty where there is no answer."""
        if self._location is None:
            return {}
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
            log.warning("the job cannot be read, which shows whether it is suspended (%s)", type(error).__name__)
            return {}
        found: Any = job.get(part) if isinstance(job, dict) else None
        return found if isinstance(found, dict) else {}


def _api() -> client.CustomObjectsApi:
    """A client with this pod's service account, or with the kubeconfig that KUBECONFIG names."""
    from kubernetes import client, config

    settings: Any = client.Configuration()
    load: Any = config.load_incluster_config
    if kubeconfig := os.environ.get("KUBECONFIG"):
        load = partial(config.load_kube_config, config_file=kubeconfig)
    load(client_configuration=settings)
    return client.CustomObjectsApi(client.ApiClient(settings))
