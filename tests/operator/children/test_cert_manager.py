"""cert-manager issues the authority of an attempt, by its own CRD and its own code.

Its controllers do not run here: their webhook needs a node.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tensafe_operator.children import Manifest, tls
from tensafe_operator.job_tls import IssuerRef, JobTls, TlsMode
from tensorguard.runners.pod.certificate import main
from tests.support import job_objects
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.gotools import module_source, program
from tests.support.programs.versions import CERT_MANAGER_MODULE
from tests.support.tls_handshake import handshake

pytestmark = pytest.mark.cluster

ISSUED_BY_CERT_MANAGER = JobTls(mode=TlsMode.CERT_MANAGER, issuer_ref=IssuerRef(name="clinic"))


def certificate(namespace: str = "clinic") -> Manifest:
    job = job_objects.admitted(job_objects.FEW_FIELDS, namespace)
    made = tls.certificate(job, 1, replace(job_objects.SETTINGS, job_tls=ISSUED_BY_CERT_MANAGER))
    assert made is not None
    return made


def test_certificate_has_no_field_that_cert_manager_does_not_know(control_plane: ControlPlane, namespace: str) -> None:
    definition = module_source("certmanager", CERT_MANAGER_MODULE) / "deploy/crds/cert-manager.io_certificates.yaml"
    control_plane.kubectl("apply", "--server-side", "-f", str(definition))
    name = yaml.safe_load(definition.read_text())["metadata"]["name"]
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
    try:
        create = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
        control_plane.kubectl(*create, text=json.dumps(certificate(namespace)))
        wrong = certificate(namespace)
        wrong["spec"]["isCa"] = True
        refused = control_plane.kubectl(*create, text=json.dumps(wrong), check=False)
        assert 'unknown field "spec.isCa"' in refused.stderr
    finally:
        control_plane.kubectl("delete", "crd", name)


@pytest.mark.nightly
def test_pods_connect_with_the_authority_that_each_kind_of_issuer_gives(tmp_path: Path) -> None:
    command = [str(program("certmanager", "tensafe.io/e2e/certmanager"))]
    made = subprocess.run(command, input=json.dumps(certificate()), capture_output=True, text=True, check=True)
    issued = json.loads(made.stdout)
    assert set(issued) == {"SelfSigned", "CA"}
    for issuer, secret in issued.items():
        variables = {
            "TENSAFE_AUTHORITY_KEY": secret["tls.key"],
            "TENSAFE_AUTHORITY_CERTIFICATE": secret["tls.crt"],
            "TENSAFE_POD_IPS": "127.0.0.1",
        }
        pods = [tmp_path / issuer / role for role in ("head", "worker")]
        for pod in pods:
            pod.parent.mkdir(exist_ok=True)
            assert main(variables, pod) == 0
        assert handshake(*pods) == "", issuer
