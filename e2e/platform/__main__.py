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

from e2e.platform import controlplane, images, kind, node
from e2e.platform.cluster import Cluster
from e2e.platform.gotools import GoUnavailable
from e2e.platform.node import ClusterError, UnsupportedMachine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.platform", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("up", "down", "status", "check", "packages", "image-settings", "built"))
    verb = parser.parse_args().verb
    if verb == "built":
        return 0 if controlplane.is_available() else 1
    started = time.monotonic()

    def log(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    with_kind = kind.is_available()
    cluster = kind.KindCluster(log) if with_kind else Cluster(log)
    try:
        match verb:
            case "up":
                cluster.up()
                log("up")
                print(f"export KUBECONFIG={cluster.kubeconfig}")
            case "down":
                cluster.down()
            case "status":
                print(cluster.status())
            case "packages":
                print(*([] if with_kind else sorted(node.missing() | images.missing())))
            case "image-settings":
                print(*([] if with_kind else (f"{name}={value}" for name, value in images.settings().items())))
            case "check":
                if isinstance(cluster, Cluster):
                    cluster.check()
                print("this machine can run the cluster")
    except (UnsupportedMachine, ClusterError, GoUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
