"""What a cluster is made of. `go.mod` in each folder beside this file says the same of what is built from Go modules;
a test compares the two.
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
KUEUE = "v0.15.0"
CYCLONUS = "v0.5.6"
DEBIAN = "bookworm"
"""Of the base image; containerd, runc, buildah and the rest are the machine's own packages."""

KUBERNETES_FLAGS = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES}"
"""What Kubernetes' programs are linked with: without it `kubectl version` cannot read its own."""
