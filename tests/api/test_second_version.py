"""The path to v1beta1 (docs/versioning.md), rehearsed on a real API server: a second version with the same schema, the
change of the stored version, and the end of the first one. No job and no charge is lost, and every rule holds in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ledger_objects import LedgerObject, charged_status, make_pod
from tests.support.manifests import MINIMAL, changed
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles

pytestmark = pytest.mark.cluster

CRDS = Path(__file__).parents[2] / "crds"
OLD, NEW = "v1alpha1", "v1beta1"
KINDS = ("tensafetrainingjobs", "privacyledgers")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    made = ControlPlane(tmp_path / "plane")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def crd_with(versions: tuple[str, ...], kind: str, stored: str) -> dict[str, Any]:
    """The CRD of this release with these versions, which differ only in their names."""
    crd = dict(yaml.safe_load((CRDS / f"tensafe.io_{kind}.yaml").read_text()))
    (version,) = crd["spec"]["versions"]
    assert version["name"] == OLD
    crd["spec"]["conversion"] = {"strategy": "None"}
    crd["spec"]["versions"] = [{**version, "name": name, "storage": name == stored} for name in versions]
    return crd


def apply(plane: ControlPlane, stored: str, versions: tuple[str, ...] = (OLD, NEW)) -> str:
    """Apply both CRDs; return the API server's error, empty if it accepts them."""
    crds = [crd_with(versions, kind, stored) for kind in KINDS]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": crds})
    return plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=text, check=False).stderr


def read(plane: ControlPlane, kind: str, version: str) -> dict[str, Any]:
    """The only object of a kind, without its version and without what the API server keeps for itself."""
    text = plane.kubectl("get", "--raw", f"/apis/tensafe.io/{version}/namespaces/clinic/{kind}").stdout
    (found,) = json.loads(text)["items"]
    assert found["apiVersion"] == f"tensafe.io/{version}"
    kept = {
        name: value for name, value in found["metadata"].items() if name not in ("managedFields", "resourceVersion")
    }
    return {**found, "apiVersion": "", "metadata": kept}


def write_status(plane: ControlPlane, version: str, status: dict[str, Any], kubeconfig: Path | None = None) -> str:
    """Write the ledger's status in a version; return the API server's error, empty if it accepts the write."""
    path = f"/apis/tensafe.io/{version}/namespaces/clinic/privacyledgers"
    (found,) = json.loads(plane.kubectl("get", "--raw", path).stdout)["items"]
    text = json.dumps({**found, "status": status})
    at = f"{path}/{found['metadata']['name']}/status"
    done = plane.kubectl("replace", "--raw", at, "-f", "-", text=text, kubeconfig=kubeconfig, check=False)
    return done.stderr if done.returncode else ""


def is_served(plane: ControlPlane, version: str) -> bool:
    done = plane.kubectl("get", "--raw", f"/apis/tensafe.io/{version}", check=False)
    return done.returncode == 0 and len(json.loads(done.stdout)["resources"]) == 4  # each kind and its status


def test_second_version_loses_nothing_and_keeps_every_rule(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(CRDS))
    plane.wait_for_crds()
    install_roles(plane)
    plane.kubectl("create", "namespace", "clinic")
    plane.kubectl("apply", "-f", "-", text=json.dumps(changed(MINIMAL, {"metadata.namespace": "clinic"})))
    ledger, pod = LedgerObject(plane, "clinic"), make_pod(plane, "clinic", "trainer")
    assert ledger.write(charged_status(pod), pod) == ""
    before = {kind: read(plane, kind, OLD) for kind in KINDS}

    assert apply(plane, stored=OLD) == ""
    wait_until(lambda: is_served(plane, NEW))
    assert {kind: read(plane, kind, NEW) for kind in KINDS} == before

    assert apply(plane, stored=NEW) == ""
    more = charged_status(
        pod,
        stepsRecharged=0,
        charges=[{**before["privacyledgers"]["status"]["charges"][0], "steps": 12}],
        chargedThrough=12,
        length=3,
    )
    assert write_status(plane, OLD, more, pod.kubeconfig) == "", "a trainer of the older release continues"
    after = {kind: read(plane, kind, OLD) for kind in KINDS}
    assert after["privacyledgers"]["status"] == more
    fewer = before["privacyledgers"]["status"]
    for version in (OLD, NEW):
        assert "only the service account" in write_status(plane, version, more), "the policy knows every version"
        assert "status.charges" in write_status(plane, version, fewer, pod.kubeconfig), "so do the rules of the CRD"
    path = f"/apis/tensafe.io/{NEW}/namespaces/clinic/tensafetrainingjobs"
    (job,) = json.loads(plane.kubectl("get", "--raw", path).stdout)["items"]
    job["spec"]["privacy"]["targetEpsilon"] = "100"
    refused = plane.kubectl("replace", "-f", "-", text=json.dumps(job), check=False).stderr
    assert "spec.privacy" in refused, "the rules of the CRD hold in every version"

    too_early = apply(plane, NEW, versions=(NEW,))
    assert "status.storedVersions" in too_early, "no version ends while objects may be stored in it"
    for kind in KINDS:
        assert f'"{kind}.tensafe.io" is invalid' in too_early

    # The migration: an empty patch makes the API server write an object again, in the version that is stored now. An
    # administrator may do that with a ledger too: it changes nothing.
    for kind in KINDS:
        name = after[kind]["metadata"]["name"]
        query = ("-n", "clinic", "get", kind, name, "-o", "jsonpath={.metadata.resourceVersion}")
        written = plane.kubectl(*query).stdout
        plane.kubectl("-n", "clinic", "patch", kind, name, "--type=merge", "-p", "{}")
        stored_again = plane.kubectl(*query).stdout != written
        # The last charge stored the ledger in the new version, unless that version did not take effect at once.
        assert stored_again or kind == "privacyledgers"
        crd = f"{kind}.tensafe.io"
        found = plane.kubectl("get", "crd", crd, "-o", "jsonpath={.status.storedVersions}").stdout
        assert json.loads(found) == [OLD, NEW]
        status = json.dumps({"status": {"storedVersions": [NEW]}})
        plane.kubectl("patch", "crd", crd, "--subresource=status", "--type=merge", "-p", status)
    assert apply(plane, NEW, versions=(NEW,)) == ""
    wait_until(lambda: not is_served(plane, OLD))
    for kind in KINDS:
        assert read(plane, kind, NEW) == after[kind]
