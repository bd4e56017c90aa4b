"""The first process of the node's namespaces. It sets them up and then reaps exited processes.

`node` starts it with `unshare`. When it exits, the kernel ends all processes in the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",
}


def main() -> None:
    for command in (
        ("mount", "--make-rshared", "/"),  # so that containers see the volumes that the kubelet mounts
        ("mount", "-t", "proc", "proc", "/proc"),
        ("ip", "link", "set", "lo", "up"),
    ):
        subprocess.run(command, check=True)
    for name, value in _SYSCTLS.items():
        Path("/proc/sys", name).write_text(value)
    print("ready", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


if __name__ == "__main__":
    main()
