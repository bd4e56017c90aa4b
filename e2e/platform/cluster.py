"""A real Kubernetes cluster on this machine: control plane, node, KubeRay, and the chart with locally built images.

    check ─► images ─► node's network ─► API server ─► containerd ─► images loaded ─► kubelet, proxy, DNS
          ─► KubeRay ─► our chart

`up` on a running cluster updates it. `down` removes everything but logs, images and builds, which stay in
~/.cache/tensafe-e2e.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.platform import images, node
from e2e.platform.node import ClusterError, Node, UnsupportedMachine
from tests.support.programs import versions
from tests.support.programs.controlplane import ControlPlane, built
from tests.support.programs.gotools import delete_build_cache, home, module_source, program
from tests.support.programs.helm import CHART, helm, set_arguments
from tests.support.programs.processes import Processes

SYSTEM, KUBERAY_SYSTEM, KUEUE_SYSTEM = "tensafe-system", "kuberay-system", "kueue-system"
VOLCANO_SYSTEM = "volcano-system"
READY_SECONDS = 180
_CLASS, _VOLUMES = "folders", 40
_PODGROUPS = "kuberay-podgroups"
_SERVERS = ("etcd", "apiserver", "controller-manager", "scheduler", "containerd", "kubelet", "kube-proxy", "coredns")
_FRONT_PROXY = "front-proxy-client"
_VAR = Path("/var/lib/containers")
"""Folder of buildah's images."""
_DISK_FIRST, _DISK_LATER = 28 << 30, 8 << 30
"""Bytes of disk for all builds and images, and for changed images where the others exist."""
_PORTS = (2379, 2380, 6443, 10257)


class ClusterControlPlane(ControlPlane):
    """The control plane of a cluster with a node: all controllers, a scheduler, and lasting servers."""

    address = node.INSIDE
    controllers = ("*",)

    def __init__(self, folder: Path, of_node: Node) -> None:
        super().__init__(folder, ports=_PORTS)
        self._node = of_node

    @functools.cached_property
    def processes(self) -> Processes:
        return self._node.processes

    def issue(self) -> None:
        super().issue()
        self._authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", groups=["system:masters"])
        self._authority.issue("front-proxy", _FRONT_PROXY)
        self.kubeconfig("kubelet", f"system:node:{node.NAME}", ["system:nodes"])
        for name in ("scheduler", "proxy"):
            self.kubeconfig(name, f"system:kube-{name}", [])
        self.kubeconfig("dns", "coredns", [])

    def start_scheduler(self) -> None:
        flags = {
            "kubeconfig": self.folder / "scheduler.kubeconfig",
            "leader-elect": "false",
            "secure-port": "10259",
            "bind-address": "127.0.0.1",
        }
        self._start("scheduler", built("kube-scheduler"), flags)

    def start_volcano(self, configuration: Path, token: str) -> None:
        """Start Volcano's scheduler, for the pods that name it.

        Args:
            configuration: file with its actions and plugins.
            token: that of its service account.
        """
        flags = {
            "kubeconfig": self.kubeconfig_of_token("volcano", token),
            "scheduler-conf": configuration,
            "leader-elect": "false",
        }
        self._start("volcano", program("volcano", "volcano.sh/volcano/cmd/scheduler"), flags)

    def _api_flags(self) -> dict[str, object]:
        return {
            **super()._api_flags(),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "kubelet-client-certificate": self.folder / "apiserver-kubelet.crt",
            "kubelet-client-key": self.folder / "apiserver-kubelet.key",
            "kubelet-preferred-address-types": "InternalIP",
            # For aggregated APIs, such as Kueue's: while one does not respond, no namespace can be deleted.
            "proxy-client-cert-file": self.folder / "front-proxy.crt",
            "proxy-client-key-file": self.folder / "front-proxy.key",
            "requestheader-client-ca-file": self.ca,
            "requestheader-allowed-names": _FRONT_PROXY,
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        }

    def _server_names(self) -> list[str]:
        return [*super()._server_names(), "kubernetes.default.svc", "10.96.0.1"]


class Cluster:
    """The local cluster. There is one for each machine.

    Args:
        log: receives each stage's name.
    """

    def __init__(self, log: Callable[[str], None] = print) -> None:
        self._home = home()
        self.folder = self._home / "cluster"
        self.logs = self._home / "logs"
        self._loaded = self._home / "loaded.json"
        self._log = log
        self.node = Node(self.folder / "node", self._home / "containerd", self.logs)
        self.plane = ClusterControlPlane(self.folder, self.node)

    @property
    def kubeconfig(self) -> Path:
        return self.plane.admin

    @property
    def running(self) -> bool:
        return self.node.running

    def check(self) -> None:
        """Check whether this machine can run the cluster.

        Raises:
            UnsupportedMachine: it cannot.
        """
        node.check()
        images.check()
        built_before = self._loaded.exists() and images.names_of_ours()[1] in self._loaded.read_text()
        needed = _DISK_LATER if built_before else _DISK_FIRST
        for place in (home(), _VAR):
            existing = next(each for each in (place, *place.parents) if each.exists())
            if (free := shutil.disk_usage(existing).free) < needed:
                fix = ", or set XDG_CACHE_HOME to another disk" if place == home() else ""
                raise UnsupportedMachine(
                    f"{existing} has {free >> 30} GiB of free disk, and the cluster's builds and images need "
                    f"{needed >> 30}: free some space{fix}"
                )

    def up(self) -> None:
        """Create the cluster, or update it.

        Raises:
            UnsupportedMachine: this machine cannot run the cluster.
            ClusterError: a part of the cluster failed.
            GoUnavailable: the programs cannot be built.
        """
        self.check()
        self._build()
        image_ids = images.build(self._log)
        if not self._all_running():
            self._start()
        self._provide_volumes()
        self._load(image_ids)
        self._log("installing KubeRay and TenSafe")
        self._install_kuberay()
        self._install_tensafe(image_ids)

    @contextlib.contextmanager
    def kueue(self) -> Iterator[None]:
        """Install Kueue, and remove it at the end, since its webhooks intercept every RayJob of the cluster."""
        chart = module_source("kueue", "sigs.k8s.io/kueue") / "charts" / "kueue"
        self._load(images.build_kueue(self._log))
        repository, _, tag = images.KUEUE.rpartition(":")
        manager = "controllerManager.manager"
        values = {
            f"{manager}.image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
            f"{manager}.resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
            "controllerManager.readinessProbe": {"initialDelaySeconds": 1, "periodSeconds": 1},
        }
        common = ("--namespace", KUEUE_SYSTEM, "--wait", f"--timeout={READY_SECONDS}s")
        install = ("install", "kueue", str(chart), "--create-namespace", *set_arguments(values))
        try:
            helm(*install, *common, kubeconfig=self.kubeconfig)
            yield
        finally:  # Kueue must run while the objects with its finalizers are deleted
            for kind in ("clusterqueues", "resourceflavors"):
                self.plane.kubectl("delete", kind, "--all", "--timeout=60s", check=False)
            helm("uninstall", "kueue", *common, kubeconfig=self.kubeconfig)
            self.plane.kubectl("delete", "namespace", KUEUE_SYSTEM)

    @contextlib.contextmanager
    def volcano(self) -> Iterator[None]:
        """Install Volcano and start KubeRay with it; at the end remove it and start KubeRay without it.

        The chart installs the CRDs and the scheduler's role. The scheduler is a process, as that of Kubernetes is.
        Volcano's controllers and webhooks are left out: KubeRay creates the PodGroups, and the scheduler their status.
        """
        chart = module_source("volcano", "volcano.sh/volcano") / "installer" / "helm" / "chart" / "volcano"
        parts = {"controller_enable": False, "admission_enable": False, "scheduler_replicas": 0}
        values = set_arguments({f"custom.{name}": value for name, value in parts.items()})
        namespace = ("--namespace", VOLCANO_SYSTEM)
        try:
            install = ("install", "volcano", str(chart), "--create-namespace", *values)
            helm(*install, *namespace, kubeconfig=self.kubeconfig)
            token = self.plane.kubectl(*namespace, "create", "token", "volcano-scheduler", "--duration=24h").stdout
            self.plane.start_volcano(chart / "config" / "volcano-scheduler.conf", token)
            self._grant_podgroups()
            self._install_kuberay("--batch-scheduler=volcano")
            yield
        finally:
            self._install_kuberay()
            self.plane.kubectl("delete", "clusterrole,clusterrolebinding", _PODGROUPS, check=False)
            self.plane.processes.kill("volcano")
            helm("uninstall", "volcano", *namespace, kubeconfig=self.kubeconfig)
            self.plane.kubectl("delete", "namespace", VOLCANO_SYSTEM)

    def down(self) -> None:
        """Remove the cluster. Logs, images and builds stay."""
        self.node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def status(self) -> str:
        """The cluster's nodes, pods and jobs as kubectl lists them."""
        if not self.running:
            return "down"
        return self.plane.kubectl("get", "nodes,pods,tsj", "--all-namespaces", "--output=wide", check=False).stdout

    def _all_running(self) -> bool:
        """Whether all servers run. An aborted test run may have left some of them stopped."""
        return self.running and all(self.node.processes.running(name) for name in _SERVERS)

    def _load(self, image_ids: dict[str, str]) -> None:
        images.load(self.node, image_ids, self._loaded, self._log)

    def _build(self) -> None:
        """Build missing programs, which takes a quarter of an hour on two cores."""
        self._log("building Kubernetes, unless it is built already")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"):
            built(name)
        program("kubernetes", "go.etcd.io/etcd/server/v3", name="etcd")
        program("coredns", "github.com/coredns/coredns")
        images.programs()
        delete_build_cache()

    def _start(self) -> None:
        self._log("starting the control plane")
        self.down()  # remove what an earlier cluster left
        for folder in (self.folder / "node", self.logs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.node.start_network()
        self.plane.start()
        self.plane.start_scheduler()
        self._log("starting the node")
        self.node.start_containerd()
        self.node.start_kubelet(self.folder / "kubelet.kubeconfig", self.plane.ca)
        self.node.start_proxy(self.folder / "proxy.kubeconfig")
        self._authorise_dns()
        self.node.start_dns(self.folder / "dns.kubeconfig")
        self._wait_for_node()
        for name in _SERVERS:
            if not self.node.processes.running(name):
                raise ClusterError(f"{name} has exited: {self.node.processes.log(name)}")

    def _authorise_dns(self) -> None:
        resources = "services,pods,namespaces,endpointslices.discovery.k8s.io,nodes"
        for arguments in (
            ("create", "clusterrole", "coredns", "--verb=list,watch,get", f"--resource={resources}"),
            ("create", "clusterrolebinding", "coredns", "--clusterrole=coredns", "--user=coredns"),
        ):
            self.plane.kubectl(*arguments)
        self.plane.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(_dns()))

    def _wait_for_node(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        wait = ("wait", "--for=condition=Ready", f"node/{node.NAME}", "--timeout=5s")
        while self.plane.kubectl(*wait, check=False).returncode:
            assert time.monotonic() < deadline, self.node.processes.log("kubelet")

    def _provide_volumes(self) -> None:
        """Create volumes for PVCs, since there is no provisioner here. A released volume is recreated empty."""
        found = json.loads(self.plane.kubectl("get", "persistentvolumes", "-o", "json").stdout)["items"]
        phases = {each["metadata"]["name"]: each["status"].get("phase") for each in found}
        kept = {name for name, phase in phases.items() if phase in ("Available", "Bound", "Pending")}
        if released := sorted(phases.keys() - kept):
            self.plane.kubectl("delete", "persistentvolumes", *released, "--timeout=60s")
        documents: list[dict[str, Any]] = [_storage_class()]
        for number in range(_VOLUMES):
            if (name := f"volume-{number}") in kept:
                continue
            folder = self.folder / "volumes" / str(number)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            folder.chmod(0o777)
            documents.append(_volume(name, folder))
        self.plane.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    def _install_kuberay(self, *arguments: str) -> None:
        """Install KubeRay, or start it again with other arguments."""
        config = module_source("kuberay", versions.KUBERAY_MODULE) / "config" / "default"
        documents = list(yaml.safe_load_all(self.plane.kubectl("kustomize", str(config)).stdout))
        for each in documents:
            _move(each, KUBERAY_SYSTEM)
            if each["kind"] == "Deployment":
                container = each["spec"]["template"]["spec"]["containers"][0]
                container["image"] = images.KUBERAY
                container["args"] += arguments
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KUBERAY_SYSTEM}}
        self.plane.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all([namespace, *documents]))
        self._wait_for_rollout(KUBERAY_SYSTEM, "kuberay-operator")

    def _grant_podgroups(self) -> None:
        """Allow KubeRay to create Volcano's PodGroups, as its chart does with `batchScheduler.name`."""
        verbs, account = "create,delete,get,list,update,watch", f"{KUBERAY_SYSTEM}:kuberay-operator"
        role = ("clusterrole", _PODGROUPS, f"--verb={verbs}", "--resource=podgroups.scheduling.volcano.sh")
        binding = ("clusterrolebinding", _PODGROUPS, f"--clusterrole={_PODGROUPS}", f"--serviceaccount={account}")
        for arguments in (role, binding):
            self.plane.kubectl("create", *arguments)

    def _install_tensafe(self, image_ids: dict[str, str]) -> None:
        operator, trainer = images.names_of_ours()
        values: dict[str, Any] = {
            "image.repository": operator.rpartition(":")[0],
            "trainer.image.repository": trainer.rpartition(":")[0],
            "podAnnotations": {
                "tensafe.io/image-id": image_ids[operator]
            },  # so that a new image of the same name is rolled out
        }
        release = ("upgrade", "--install", "tensafe", str(CHART), "--namespace", SYSTEM, "--create-namespace")
        helm(*release, *set_arguments(values), kubeconfig=self.kubeconfig)
        self._wait_for_rollout(SYSTEM, "tensafe-operator")

    def _wait_for_rollout(self, namespace: str, deployment: str) -> None:
        wait = ("rollout", "status", f"deployment/{deployment}", f"--timeout={READY_SECONDS}s")
        self.plane.kubectl("-n", namespace, *wait)


def _move(document: dict[str, Any], namespace: str) -> None:
    """Change the namespace of one of KubeRay's documents, which its kustomization sets to `default`."""
    if "namespace" in document["metadata"]:
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects") or ():
        subject["namespace"] = namespace


def _storage_class() -> dict[str, Any]:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _CLASS, "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner",
    }


def _volume(name: str, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": _CLASS,
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "hostPath": {"path": str(folder)},
        },
    }


def _dns() -> list[dict[str, Any]]:
    """The Service of CoreDNS. CoreDNS is not a pod here, so the endpoint is the bridge's address."""
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": node.DNS, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [node.GATEWAY]}],
        "ports": ports,
    }
    return [service, endpoints]
