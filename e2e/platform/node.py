"""This machine as the one node of a cluster: containerd, kubelet, kube-proxy and DNS, in namespaces of their own.

    init ─► (mounts, processes, network, hostname) ─► containerd ─► kubelet ─► pods
              └ veth to this machine, bridge of the pods' network ─► kube-proxy, CoreDNS

All of it hangs on one process, the namespaces' `init`: when that is killed, every process of the node ends, and its
mounts, its iptables chains and its links are gone with their namespaces. Only control groups are left, and removed.

It needs root, containerd, runc, the CNI plugins, iptables and conntrack; what is missing is told by its package's name.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import yaml

from e2e.platform.controlplane import built
from e2e.platform.gotools import program
from e2e.platform.processes import TIMEOUT_SECONDS, Processes, identity, process_of

NAME = "localhost"
OUTSIDE, INSIDE = "10.84.0.1", "10.84.0.2"
"""The two ends of the cable between this machine and the node: tests reach the node's servers by the second."""
GATEWAY, POD_NETWORK = "10.85.0.1", "10.85.0.0/16"
SERVICE_NETWORK, DNS = "10.96.0.0/16", "10.96.0.10"
PAUSE = "localhost/pause:1"
BRIDGE = "pods"
_CABLE = "tensafe-e2e"
_CGROUP = "tensafe-e2e"
_MEMORY = 18 << 30
_CNI = Path("/usr/lib/cni")
_COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "mount": "mount",
    "tcpdump": "tcpdump",
}


class UnsupportedMachine(Exception):
    """This machine cannot be a node; the message says what it lacks, and how that is mended. Only checks raise it: what
    breaks after them is `ClusterError`.
    """


class ClusterError(Exception):
    """A part of the cluster that this machine can have does not work."""


def missing() -> set[str]:
    """The Debian packages that a node needs and this machine lacks."""
    found = {package for command, package in _COMMANDS.items() if not shutil.which(command)}
    return found if (_CNI / "bridge").exists() else found | {"containernetworking-plugins"}


def check() -> None:
    """See whether this machine can be a node.

    Raises:
        UnsupportedMachine: where it cannot.
    """
    if os.geteuid() != 0:
        raise UnsupportedMachine("a node needs root: run it with sudo, or point KUBECONFIG at a cluster of your own")
    if (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) < _MEMORY:
        raise UnsupportedMachine(
            f"this machine has {memory >> 30} GiB of memory, and a cluster with a job on it takes 18"
        )
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        raise UnsupportedMachine(
            "this machine's control groups are of version 2, on which this cluster was never tried: point KUBECONFIG "
            "at a cluster of your own"
        )
    if lacking := missing():
        raise UnsupportedMachine(f"a node needs Debian's packages {', '.join(sorted(lacking))}: apt-get install them")
    probe = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedMachine(
            f"this machine's kernel gives no namespaces ({done.stderr.strip()}): use one that can run containers"
        )


class Node:
    """The node. Its files are in `folder`, which is gone with it; images are kept in `store`.

    Args:
        folder: pids, sockets, configuration, pods' volumes.
        store: containerd's, from one cluster to the next.
        logs: of the servers.
    """

    def __init__(self, folder: Path, store: Path, logs: Path) -> None:
        self._folder, self._store, self._logs = folder, store, logs
        self.socket = folder / "containerd.sock"

    @property
    def running(self) -> bool:
        return self._init() is not None

    @property
    def processes(self) -> Processes:
        """The servers in the node's namespaces."""
        init = self._init()
        assert init is not None, "the node is not running"
        names = ("mount", "pid", "net", "uts", "ipc")
        within = ["nsenter", "--target", str(init), *(f"--{name}" for name in names), "--"]
        return Processes(self._folder, self._logs, within)

    def start_network(self) -> None:
        """Make the namespaces, the cable and the pods' bridge."""
        unshare = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"]
        script = str(Path(__file__).with_name("init.py"))
        with (self._logs / "init.log").open("ab") as log:
            outer = subprocess.Popen(
                [*unshare, sys.executable, "-u", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert outer.stdout is not None
        if outer.stdout.readline() != b"ready\n":
            raise ClusterError(f"the node's namespaces cannot be set up: see {self._logs / 'init.log'}")
        init = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        self._init_file.write_text(identity(init))
        _run("ip", "link", "add", _CABLE, "type", "veth", "peer", "name", "eth0", "netns", str(init))
        _run("ip", "address", "add", f"{OUTSIDE}/30", "dev", _CABLE)
        _run("ip", "link", "set", _CABLE, "up")
        for command in (
            ("address", "add", f"{INSIDE}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "add", BRIDGE, "type", "bridge"),
            ("address", "add", f"{GATEWAY}/16", "dev", BRIDGE),
            ("link", "set", BRIDGE, "up"),
            ("route", "add", SERVICE_NETWORK, "dev", BRIDGE),  # the API server's way to webhooks; kube-proxy turns it
        ):
            self.run("ip", *command)

    def start_containerd(self) -> None:
        """Start containerd, with the images that it has kept and without the containers of an earlier node."""
        self._write("cni/10-pods.conflist", json.dumps(_cni(self._folder / "addresses")))
        self._write("containerd.toml", _containerd(self._store, self._folder, self.socket))
        self.processes.start("containerd", ["containerd", "--config", str(self._folder / "containerd.toml")])
        _until(lambda: self._ctr("version").returncode == 0, "containerd does not answer")
        for container in self._ctr("containers", "list", "--quiet").stdout.split():
            self._ctr("containers", "delete", container)

    def start_kubelet(self, kubeconfig: Path, authority: Path) -> None:
        """Start the kubelet. `authority` is the certificate of whoever may ask it for logs."""
        group = Path("/sys/fs/cgroup")
        for controller in group.iterdir():
            (controller / _CGROUP).mkdir(exist_ok=True)
        resolve = self._write("resolv.conf", f"nameserver {GATEWAY}\n")
        configuration = self._write("kubelet.yaml", yaml.safe_dump(_kubelet(self.socket, authority, resolve)))
        flags = {
            "config": configuration,
            "kubeconfig": kubeconfig,
            "hostname-override": NAME,
            "node-ip": GATEWAY,
            "root-dir": self._folder / "kubelet",
        }
        self._serve("kubelet", built("kubelet"), flags)

    def start_proxy(self, kubeconfig: Path) -> None:
        """Let services have addresses."""
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": POD_NETWORK,
            "hostnameOverride": NAME,
            "conntrack": {"maxPerCore": 0, "min": 0},  # the kernel's settings are not ours to change
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
        flags = {"config": self._write("proxy.yaml", yaml.safe_dump(settings))}
        self._serve("kube-proxy", built("kube-proxy"), flags)

    def start_dns(self, kubeconfig: Path) -> None:
        """Let services and pods have names."""
        zones = "cluster.local in-addr.arpa"
        plugins = f"kubernetes {zones} {{\n kubeconfig {kubeconfig}\n pods insecure\n}}\n cache 2\n errors"
        corefile = self._write("Corefile", f".:53 {{\n bind {GATEWAY}\n {plugins}\n}}\n")
        self._serve("coredns", program("coredns", "github.com/coredns/coredns"), {"conf": corefile}, dashes="-")

    def run(self, *command: str) -> str:
        """What a command in the node's namespaces prints."""
        init = self._init()
        return _run("nsenter", "--target", str(init), "--mount", "--pid", "--net", "--", *command)

    def images(self) -> set[str]:
        """The names of the images that containerd has."""
        return set(self._ctr("images", "list", "--quiet").stdout.split())

    def load(self, writer: list[str]) -> None:
        """Give containerd the image in the archive that a command writes to its output."""
        with subprocess.Popen(writer, stdout=subprocess.PIPE) as writing:
            done = self._ctr("images", "import", "-", stdin=writing.stdout)
        assert not done.returncode and not writing.returncode, done.stderr

    def tag(self, name: str, other: str) -> None:
        """Let an image that is there have another name, too."""
        done = self._ctr("images", "tag", "--force", name, other)
        assert not done.returncode, done.stderr

    def untag(self, name: str) -> None:
        """Forget a name of an image; the image stays while it has another."""
        done = self._ctr("images", "remove", name)
        assert not done.returncode, done.stderr

    def stop(self) -> None:
        """End all that the node is made of. What is not there is no error."""
        if (init := self._init()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, 9)
            _until(lambda: self._init() is None, "the node's first process does not end")
        if Path(f"/sys/class/net/{_CABLE}").exists():  # its other end is gone by now, and so is it, or soon
            subprocess.run(["ip", "link", "delete", _CABLE], capture_output=True, check=False)
        for controller in Path("/sys/fs/cgroup").iterdir():
            if (controller / _CGROUP).is_dir():
                group = controller / _CGROUP
                _until(functools.partial(_removed, group), f"{group} is in use")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self, name: str, command: Path, flags: Mapping[str, object], dashes: str = "--") -> None:
        given = [f"{dashes}{flag}={value}" for flag, value in flags.items()]
        self.processes.start(name, [str(command), *given], {"GOMAXPROCS": "2"})

    def _ctr(self, *arguments: str, stdin: IO[bytes] | None = None) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def _init_file(self) -> Path:
        return self._folder / "init.pid"

    def _init(self) -> int | None:
        """The process that all hangs on."""
        with contextlib.suppress(OSError):
            return process_of(self._init_file.read_text())
        return None


def _containerd(store: Path, folder: Path, socket: Path) -> str:
    """containerd's configuration. There is no CAP_SYS_RESOURCE in a container that plays a machine, so scores are only
    ever raised.
    """
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""
version = 2
root = "{store}"
state = "{folder}/containerd"
oom_score = 0
[grpc]
address = "{socket}"
[{cri}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "{_CNI}"
conf_dir = "{folder}/cni"
[{cri}.containerd]
snapshotter = "overlayfs"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def _cni(addresses: Path) -> dict[str, object]:
    ranges = {"type": "host-local", "dataDir": str(addresses), "ranges": [[{"subnet": POD_NETWORK}]]}
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {**ranges, "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet(socket: Path, authority: Path, resolve: Path) -> dict[str, object]:
    """The kubelet's configuration. Images are never collected, since nothing could bring them back."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": str(authority)}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{_CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{socket}",
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolve),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
    }


def _until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise ClusterError(what)
        time.sleep(0.05)  # nobody tells


def _removed(group: Path) -> bool:
    """Whether a control group and all in it is gone."""
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not group.exists()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
