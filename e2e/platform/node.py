"""This machine as the only node of a cluster: containerd, kubelet, kube-proxy and DNS, in separate namespaces.

    init ─► (mounts, processes, network, hostname) ─► containerd ─► kubelet ─► pods
              └ veth to this machine, bridge of the pods' network ─► kube-proxy, CoreDNS

The first process of the namespaces is `init`. When it is killed, the kernel ends all processes of the node and removes
its mounts, iptables chains and links with the namespaces. Only control groups remain; `stop` removes them.

The node needs root, containerd, runc, the CNI plugins, iptables and conntrack. `check` names the missing packages.
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

from tests.support.programs.controlplane import built
from tests.support.programs.gotools import program
from tests.support.programs.processes import TIMEOUT_SECONDS, Processes, identity, process_of

NAME = "localhost"
OUTSIDE, INSIDE = "10.84.0.1", "10.84.0.2"
"""Addresses of the veth pair: this machine's end and the node's. Tests reach the node's servers at the second."""
GATEWAY, POD_NETWORK = "10.85.0.1", "10.85.0.0/16"
SERVICE_NETWORK, DNS = "10.96.0.0/16", "10.96.0.10"
PAUSE = "localhost/pause:1"
BRIDGE = "pods"
_VETH = "tensafe-e2e"
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
    """This machine cannot run the cluster; the message has the reason and the fix. Only checks raise it: any later
    failure is a `ClusterError`.
    """


class ClusterError(Exception):
    """A part of the cluster failed on a machine that passed the checks."""


def missing() -> set[str]:
    """The Debian packages that the node needs and this machine lacks."""
    found = {package for command, package in _COMMANDS.items() if not shutil.which(command)}
    return found if (_CNI / "bridge").exists() else found | {"containernetworking-plugins"}


def check() -> None:
    """Check whether this machine can be the node.

    Raises:
        UnsupportedMachine: it cannot.
    """
    if os.geteuid() != 0:
        raise UnsupportedMachine("the local cluster needs root: use sudo, or set KUBECONFIG to another cluster")
    if (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) < _MEMORY:
        raise UnsupportedMachine(
            f"this machine has {memory >> 30} GiB of memory, and a cluster with one job needs 18: "
            "set KUBECONFIG to another cluster"
        )
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        raise UnsupportedMachine(
            "this machine has control groups of version 2, on which the local cluster was not tested: "
            "set KUBECONFIG to another cluster"
        )
    if lacking := missing():
        raise UnsupportedMachine(
            f"Debian packages are missing ({', '.join(sorted(lacking))}): install them with apt-get install"
        )
    probe = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedMachine(
            f"this machine does not permit new namespaces ({done.stderr.strip()}): use one that can run containers"
        )


class Node:
    """The node.

    Args:
        folder: for process ids, sockets, configuration and pods' volumes; `stop` deletes it.
        store: containerd's images, which later clusters use again.
        logs: folder of the servers' logs.
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
        """Create the namespaces, the veth pair and the pods' bridge."""
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
            raise ClusterError(f"the node's namespaces could not be set up: see {self._logs / 'init.log'}")
        init = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        self._init_file.write_text(identity(init))
        _run("ip", "link", "add", _VETH, "type", "veth", "peer", "name", "eth0", "netns", str(init))
        _run("ip", "address", "add", f"{OUTSIDE}/30", "dev", _VETH)
        _run("ip", "link", "set", _VETH, "up")
        for command in (
            ("address", "add", f"{INSIDE}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "add", BRIDGE, "type", "bridge"),
            ("address", "add", f"{GATEWAY}/16", "dev", BRIDGE),
            ("link", "set", BRIDGE, "up"),
            ("route", "add", SERVICE_NETWORK, "dev", BRIDGE),  # from the API server to webhooks; kube-proxy rewrites it
        ):
            self.run("ip", *command)

    def start_containerd(self) -> None:
        """Start containerd with the images in its store; delete the containers of an earlier node."""
        self._write("cni/10-pods.conflist", json.dumps(_cni(self._folder / "addresses")))
        self._write("containerd.toml", _containerd(self._store, self._folder, self.socket))
        self.processes.start("containerd", ["containerd", "--config", str(self._folder / "containerd.toml")])
        _wait_until(lambda: self._ctr("version").returncode == 0, "containerd does not respond")
        for container in self._ctr("containers", "list", "--quiet").stdout.split():
            self._ctr("containers", "delete", container)

    def start_kubelet(self, kubeconfig: Path, authority: Path) -> None:
        """Start the kubelet. `authority` is the certificate of the authority whose clients may read logs."""
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
        """Start kube-proxy, for the addresses of Services."""
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": POD_NETWORK,
            "hostnameOverride": NAME,
            "conntrack": {"maxPerCore": 0, "min": 0},  # do not change the kernel's settings
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
        flags = {"config": self._write("proxy.yaml", yaml.safe_dump(settings))}
        self._serve("kube-proxy", built("kube-proxy"), flags)

    def start_dns(self, kubeconfig: Path) -> None:
        """Start CoreDNS, for the names of Services and pods."""
        zones = "cluster.local in-addr.arpa"
        plugins = f"kubernetes {zones} {{\n kubeconfig {kubeconfig}\n pods insecure\n}}\n cache 2\n errors"
        corefile = self._write("Corefile", f".:53 {{\n bind {GATEWAY}\n {plugins}\n}}\n")
        self._serve("coredns", program("coredns", "github.com/coredns/coredns"), {"conf": corefile}, dashes="-")

    def run(self, *command: str) -> str:
        """Run a command in the node's namespaces; return its output."""
        init = self._init()
        return _run("nsenter", "--target", str(init), "--mount", "--pid", "--net", "--", *command)

    def images(self) -> set[str]:
        """Names of containerd's images."""
        return set(self._ctr("images", "list", "--quiet").stdout.split())

    def load(self, writer: list[str]) -> None:
        """Import the image archive that a command writes to its standard output."""
        with subprocess.Popen(writer, stdout=subprocess.PIPE) as writing:
            done = self._ctr("images", "import", "-", stdin=writing.stdout)
        assert not done.returncode and not writing.returncode, done.stderr

    def tag(self, name: str, other: str) -> None:
        """Give an image a second name."""
        done = self._ctr("images", "tag", "--force", name, other)
        assert not done.returncode, done.stderr

    def untag(self, *names: str) -> None:
        """Remove names of images. An image stays while it has another name."""
        if names:
            done = self._ctr("images", "remove", "--sync", *names)  # an import must not begin while layers are deleted
            assert not done.returncode, done.stderr

    def stop(self) -> None:
        """Remove all parts of the node. Parts that do not exist are no error."""
        if (init := self._init()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, 9)
            _wait_until(lambda: self._init() is None, "the node's first process does not exit")
        if Path(f"/sys/class/net/{_VETH}").exists():  # the kernel removes it with the other end, but maybe later
            subprocess.run(["ip", "link", "delete", _VETH], capture_output=True, check=False)
        for controller in Path("/sys/fs/cgroup").iterdir():
            if (controller / _CGROUP).is_dir():
                group = controller / _CGROUP
                _wait_until(functools.partial(_remove_group, group), f"{group} is in use")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self, name: str, command: Path, flags: Mapping[str, object], dashes: str = "--") -> None:
        arguments = [f"{dashes}{flag}={value}" for flag, value in flags.items()]
        self.processes.start(name, [str(command), *arguments], {"GOMAXPROCS": "2"})

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
        """Id of the namespaces' first process; None if it does not run."""
        with contextlib.suppress(OSError):
            return process_of(self._init_file.read_text())
        return None


def _containerd(store: Path, folder: Path, socket: Path) -> str:
    """containerd's configuration.

    A container that serves as a machine lacks CAP_SYS_RESOURCE, so OOM scores may only be raised.
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
    """The kubelet's configuration. Garbage collection of images is off, since there is no registry to pull from."""
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


def _wait_until(condition: Callable[[], object], failure_message: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(failure_message)
        time.sleep(0.05)  # no event reports it


def _remove_group(group: Path) -> bool:
    """Remove a control group with its children; return whether it no longer exists."""
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not group.exists()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
