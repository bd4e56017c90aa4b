"""`python -m e2e.platform up|down|status`: a Kubernetes of this machine alone, for tests and for trying things.

`packages` names the Debian packages that it lacks here, and `check` says whether this machine can have one. `built`
exits with 0 if the programs of the control plane are in the cache, and with 1 if a test would have to build them.
"""

from __future__ import annotations

import argparse
import sys
import time

from e2e.platform import controlplane, images, node
from e2e.platform.cluster import Cluster
from e2e.platform.gotools import GoUnavailable
from e2e.platform.node import ClusterError, UnsupportedMachine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.platform", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("up", "down", "status", "packages", "check", "built"))
    verb = parser.parse_args().verb
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    cluster = Cluster(say)
    try:
        match verb:
            case "up":
                cluster.up()
                say("up")
                print(f"export KUBECONFIG={cluster.kubeconfig}")
            case "down":
                cluster.down()
            case "status":
                print(cluster.status())
            case "packages":
                print(*sorted(node.missing() | images.missing()))
            case "built":
                return 0 if controlplane.is_available() else 1
            case "check":
                cluster.check()
                print("this machine can have one")
    except (UnsupportedMachine, ClusterError, GoUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
