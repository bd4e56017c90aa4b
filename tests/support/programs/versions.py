"""Versions of the programs that a cluster consists of.

The `go.mod` files in `modules` pin the same versions; a test compares them.
"""

from __future__ import annotations

KUBERNETES = "v1.36.3"
ETCD = "v3.6.8"
COREDNS = "v1.12.4"
HELM = "v3.22.0"
KUBERAY = "v1.6.2"
KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator"
VERSITYGW = "v1.8.0"
ARGO_CD = "v3.1.0"
CERT_MANAGER = "v1.21.2"
CERT_MANAGER_MODULE = "github.com/cert-manager/cert-manager"
KUEUE = "v0.15.0"
VOLCANO = "v1.10.0"
CYCLONUS = "v0.5.6"
GRAFANA_SDK = "v0.0.22"
PROMETHEUS = "v0.315.1"
"""Version of the Go module, which is Prometheus 3.15.1."""
HELM_DOCS = "v1.14.2"
REGISTRY = "v3.1.2"
SYFT = "v1.57.1"
FULCIO = "v1.8.8"
REKOR = "v2.3.0"
TESSERACT = "v0.1.1"
DEBIAN = "bookworm"
"""Release of the base image. containerd, runc, buildah and other tools are packages of the machine itself."""

KUBERNETES_FLAGS = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES}"
"""Linker flags of Kubernetes' programs. Without them `kubectl version` cannot parse its own version."""
