"""The specification of a ledger, and the backends that implement the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from tensafe_api.resources.ledger import LEDGER_KIND, LedgerSpec
from tensorguard.ledger.contract import Ledger, LedgerError
from tensorguard.ledger.file import FileLedger
from tensorguard.ledger.kubernetes import KubernetesLedger
from tests.support.ledger_files import SPEC
from tests.support.ledger_objects import LedgerObject, make_pod
from tests.support.programs.api_server import RequestRejected
from tests.support.programs.controlplane import ControlPlane

_NUMBERS = itertools.count(1)


class FileBackend:
    """The file ledger of one job. `create` creates it, `open` opens it again, as another process does."""

    knows_old_heads = True
    examples = 60

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, spec: LedgerSpec) -> Ledger:
        return FileLedger.create(self._directory, spec)

    def open(self) -> Ledger:
        return FileLedger(self._directory)


class KubernetesBackend:
    """A ledger on a real API server, opened from one pod of the trainer."""

    knows_old_heads = False
    examples = 12

    def __init__(
        self, plane: ControlPlane, namespace: str, *, like: KubernetesBackend | None = None, account: str = "trainer"
    ) -> None:
        """Create a pod of the trainer.

        Args:
            like: the backend whose ledger this is, seen from another pod.
            account: the service account of the pod.
        """
        self._plane, self._namespace = plane, namespace
        self._name = like._name if like else f"ledger-{next(_NUMBERS)}"
        self._uid = like._uid if like else "none yet"
        self.pod = make_pod(plane, namespace, account)
        self.api = client.CustomObjectsApi(config.new_client_from_config(str(self.pod.kubeconfig)))

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `KubernetesLedger`."""
        location = {"namespace": self._namespace, "name": self._name, "uid": self._uid}
        return {"api": self.api, "pod_uid": self.pod.uid, **location}

    def create(self, spec: LedgerSpec) -> KubernetesLedger:
        owner = {"serviceAccountName": "trainer", "keySecretName": "key", "keyDigest": "0" * 64}
        fields = spec.model_dump(by_alias=True, mode="json", exclude_none=True) | owner
        try:
            LedgerObject(self._plane, self._namespace, name=self._name, **fields)
        except RequestRejected as error:  # the operator creates ledgers, and the API server refuses a second one
            raise LedgerError(str(error).replace("already exists", "exists already")) from error
        self._uid = self.object()["metadata"]["uid"]
        return self.open()

    def open(self) -> KubernetesLedger:
        return KubernetesLedger(**self.arguments)

    def object(self) -> dict[str, Any]:
        """The PrivacyLedger object."""
        found = self._plane.api.find(LEDGER_KIND, self._namespace, self._name)
        assert found is not None
        return found


@pytest.fixture
def kubernetes_backend() -> type[KubernetesBackend]:
    return KubernetesBackend


@pytest.fixture(params=["file", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def make_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], FileBackend | KubernetesBackend]:
    """Creates instances of the backend under test, without a ledger."""
    if request.param == "file":
        return lambda: FileBackend(tmp_path_factory.mktemp("ledger"))
    plane, namespace = request.getfixturevalue("control_plane"), request.getfixturevalue("namespace")
    return lambda: KubernetesBackend(plane, namespace)


@pytest.fixture
def backend(make_backend: Callable[[], FileBackend | KubernetesBackend]) -> FileBackend | KubernetesBackend:
    """The backend under test, without a ledger."""
    return make_backend()


@pytest.fixture
def spec() -> LedgerSpec:
    return SPEC
