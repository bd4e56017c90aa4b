"""The versions in `versions.py` are those that the Go modules pin."""

from __future__ import annotations

import re

import pytest

from tests.support.programs import versions
from tests.support.programs.gotools import MODULES

PINNED = {
    "kubernetes": {"k8s.io/kubernetes": versions.KUBERNETES, "go.etcd.io/etcd/server/v3": versions.ETCD},
    "kubectl_yaml": {"k8s.io/apimachinery": versions.KUBERNETES.replace("v1.", "v0.")},
    "certmanager": {versions.CERT_MANAGER_MODULE: versions.CERT_MANAGER},
    "coredns": {"github.com/coredns/coredns": versions.COREDNS},
    "helm": {"helm.sh/helm/v3": versions.HELM},
    "kuberay": {versions.KUBERAY_MODULE: versions.KUBERAY},
    "s3": {"github.com/versity/versitygw": versions.VERSITYGW},
    "kueue": {"sigs.k8s.io/kueue": versions.KUEUE},
    "volcano": {"volcano.sh/volcano": versions.VOLCANO},
    "cyclonus": {"github.com/mattfenwick/cyclonus": versions.CYCLONUS},
    "prometheus": {"github.com/prometheus/prometheus": versions.PROMETHEUS},
    "grafana": {"github.com/grafana/grafana-foundation-sdk/go": versions.GRAFANA_SDK},
    "helm_docs": {"github.com/norwoodj/helm-docs": versions.HELM_DOCS},
    "registry": {"github.com/distribution/distribution/v3": versions.REGISTRY},
    "syft": {"github.com/anchore/syft": versions.SYFT},
    "sigstore": {
        "github.com/sigstore/fulcio": versions.FULCIO,
        "github.com/sigstore/rekor-tiles/v2": versions.REKOR,
        "github.com/transparency-dev/tesseract": versions.TESSERACT,
    },
    "argocd": {"github.com/argoproj/argo-cd/v3": versions.ARGO_CD},
}


@pytest.mark.parametrize("module", sorted(path.parent.name for path in MODULES.glob("*/go.mod")))
def test_go_module_pins_the_stated_version(module: str) -> None:
    text = (MODULES / module / "go.mod").read_text()
    for package, version in PINNED[module].items():
        assert re.findall(rf"^\t(?:{re.escape(package)}) (v\S+)", text, re.MULTILINE) == [version]
