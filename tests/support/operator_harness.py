"""Operators as processes with a control plane of their own, and a proxy that cuts them off from the API server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tensafe_api.resources.job import KIND
from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.manifests import MINIMAL, changed
from tests.support.operator_process import OperatorProcess
from tests.support.polling import TIMEOUT_SECONDS, wait_until
from tests.support.programs.api_requests import RESOURCES
from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles


class OperatorHarness:
    """A control plane for one test, whose servers the test may kill, and operators that use it.

    Args:
        folder: for the logs of the operators, and for a new control plane.
        plane: a control plane that is not running; a new one by default.
    """

    def __init__(self, folder: Path, plane: ControlPlane | None = None) -> None:
        self.folder = folder
        self.plane = plane or ControlPlane(folder / "plane")
        self.operators: list[OperatorProcess] = []

    def start(self, *, kinds: bool = True, **values: Any) -> None:
        """Start the servers. Install our CRDs and KubeRay's, and the roles of a chart with these values."""
        self.plane.start()
        for namespace in ("clinic", "lab"):
            self.plane.kubectl("create", "namespace", namespace)
        self.kubeconfig = install_roles(self.plane, **values)
        self.settings = {"TENSAFE_NAMESPACES": ",".join(values.get("namespaces", ()))}
        if kinds:
            self.install_our_crds()
            install_kuberay_crds(self.plane)

    def restored(self, folder: Path) -> OperatorHarness:
        """A harness on the control plane of this one, with the data that was saved."""
        made = OperatorHarness(folder, self.plane)
        made.kubeconfig, made.settings = self.kubeconfig, self.settings
        self.plane.restore()
        return made

    def install_our_crds(self) -> None:
        self.plane.kubectl("apply", "-f", str(Path(__file__).parents[2] / "crds"))
        self.plane.wait_for_crds()

    def refused(self) -> list[str]:
        """The requests of the operator that were forbidden."""
        requests = self.plane.requests("tensafe-system:tensafe-operator")
        assert len(requests) > 20
        return [each["requestURI"] for each in requests if each["responseStatus"]["code"] == 403]

    def stop(self) -> None:
        for each in self.operators:
            each.kill()
        self.plane.stop()

    def operator(self, kubeconfig: Path | None = None, *, before: str = "", **more: str) -> OperatorProcess:
        """Start an operator.

        Args:
            kubeconfig: credentials; by default those of the chart's service account in tensafe-system.
            before: Python code that the process runs before the operator.
            more: environment variables.
        """
        log = self.folder / f"operator-{len(self.operators)}.log"
        environment = {**self.settings, "KUBECONFIG": str(kubeconfig or self.kubeconfig), **more}
        self.operators.append(OperatorProcess(log, environment, before=before))
        return self.operators[-1]

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("operator-*.log")))

    def apply(self, name: str, namespace: str = "clinic", changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        job = changed(MINIMAL, {"metadata.name": name, "metadata.namespace": namespace, **changes})
        self.plane.api.apply(job)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.plane.api.find(kind, "clinic", name)

    def wait_until(self, condition: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until a condition holds, for so many seconds in which the CPUs were available. Operators that lose their
        Lease meanwhile are restarted.
        """

        def condition_holds() -> object:
            for each in self.operators:
                each.restart_if_lease_lost()
            return condition()

        wait_until(condition_holds, seconds, lambda: self.logs()[-3000:])

    def ray_jobs(self) -> list[str]:
        """Names of all RayJobs."""
        found = self.plane.api.send("GET", RESOURCES["RayJob"].path("clinic"))["items"]
        return sorted(each["metadata"]["name"] for each in found)

    def started(self, name: str, attempt: int = 1) -> bool:
        """Whether the status has the start time of this attempt, the last part of a start that is written."""
        status = (self.get(KIND, name) or {}).get("status") or {}
        return any(each["number"] == attempt and "startTime" in each for each in status.get("attempts", ()))

    def lease(self) -> tuple[str, str]:
        """The holder of the Lease, and the time of its renewal."""
        spec = (self.plane.api.find("Lease", "tensafe-system", "tensafe-operator") or {})["spec"]
        return spec.get("holderIdentity", ""), spec["renewTime"]

    def kubeconfig_through(self, proxy: FreezableProxy) -> Path:
        """The operator's kubeconfig with the address of a proxy."""
        path = self.folder / "through-the-proxy.kubeconfig"
        path.write_text(self.kubeconfig.read_text().replace(self.plane.url, proxy.url))
        path.chmod(0o600)
        return path


class FreezableProxy:
    """A TCP proxy to the API server that can freeze its open connections and refuse new ones."""

    def __init__(self, url: str) -> None:
        self._target = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._epoch = 0
        self.refuse_new = False
        """Whether new connections are refused."""
        self._open: list[socket.socket] = []

    def __enter__(self) -> FreezableProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            each.close()

    def freeze(self) -> None:
        """Transfer nothing more on the connections that are open now, and keep them open."""
        self._epoch += 1

    def cut(self) -> None:
        """Close the connections that are open now."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.refuse_new:
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(*pair, self._epoch), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, epoch: int) -> None:
        try:
            while data := source.recv(65536):
                if epoch != self._epoch:
                    return  # frozen: the data is lost, the connection stays open
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one side has closed the connection
