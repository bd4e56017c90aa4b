"""A local Kubernetes cluster, for tests and for trying things out.

    up              create the cluster, or update it, and print its KUBECONFIG
    down            remove it
    status          list its nodes, pods and jobs
    check           report whether this machine can run it
    packages        print the Debian packages that this machine lacks for it
    image-settings  print the variables with which `make images` builds the images that the cluster uses
    built           exit with 0 if the control plane's programs are in the cache, and with 1 if a test would build them

Where Docker's engine and kind are available, the cluster is one of kind. Otherwise it consists of processes in
namespaces of this machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from e2e.platform import images, kind, node
from e2e.platform.cluster import Cluster
from e2e.platform.node import ClusterError, UnsupportedMachine
from tests.support.programs import controlplane
from tests.support.programs.gotools import GoUnavailable

AnyCluster = kind.KindCluster | Cluster


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.platform", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=(*VERBS, "built"))
    verb = parser.parse_args().verb
    if verb == "built":
        return 0 if controlplane.is_available() else 1
    started = time.monotonic()

    def log(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    try:
        VERBS[verb](kind.KindCluster(log) if kind.is_available() else Cluster(log))
        if verb == "up":
            log("up")
    except (UnsupportedMachine, ClusterError, GoUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def up(cluster: AnyCluster) -> None:
    cluster.up()
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def check(cluster: AnyCluster) -> None:
    if isinstance(cluster, Cluster):
        cluster.check()
    print("this machine can run the cluster")


def print_packages(cluster: AnyCluster) -> None:
    print(*(sorted(node.missing() | images.missing()) if isinstance(cluster, Cluster) else []))


def print_image_settings(cluster: AnyCluster) -> None:
    settings = images.settings() if isinstance(cluster, Cluster) else {}
    print(*(f"{name}={value}" for name, value in settings.items()))


VERBS: dict[str, Callable[[AnyCluster], None]] = {
    "up": up,
    "down": lambda cluster: cluster.down(),
    "status": lambda cluster: print(cluster.status()),
    "check": check,
    "packages": print_packages,
    "image-settings": print_image_settings,
}


if __name__ == "__main__":
    sys.exit(main())
