"""The cluster for tests that are marked `e2e`: one of this machine (kind, or namespaces), or that of KUBECONFIG."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.platform import kind
from e2e.platform.cluster import Cluster
from e2e.platform.kind import KindCluster
from e2e.platform.node import UnsupportedMachine
from tests.support.programs.controlplane import CertificateAuthority
from tests.support.programs.gotools import GoUnavailable, home
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import TeamNamespace

_EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart" / "make_data.py"
REQUIRED = "TENSAFE_E2E_REQUIRED"
"""Environment variable. If it is set, a scenario that cannot run fails instead of being skipped."""
_STOPWATCH = Stopwatch(home() / "times.jsonl", here=not os.environ.get("KUBECONFIG"))
_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a failure for the fixtures of the test, and write it to a file at once."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    if report.failed:  # pytest prints failures only at the end of the run
        folder = home() / "dumps" / item.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.txt").write_text(report.longreprtext)
    return report


def pytest_report_header() -> str:
    return f"scenarios on pods: {os.environ.get('KUBECONFIG') or 'a local cluster'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _STOPWATCH.lines:
        terminalreporter.section("durations of scenarios")
        for line in _STOPWATCH.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def stopwatch() -> Stopwatch:
    return _STOPWATCH


@pytest.fixture(scope="session")
def any_cluster(request: pytest.FixtureRequest) -> Cluster | KindCluster | None:
    """The local cluster, running; None if KUBECONFIG names another one."""
    if os.environ.get("KUBECONFIG"):
        return None
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def log(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {message}", end="", flush=True)

    cluster = KindCluster(log) if kind.is_available() else Cluster(log)
    try:
        with _STOPWATCH("cluster up, with KubeRay and TenSafe"):
            cluster.up()
    except (UnsupportedMachine, GoUnavailable) as error:
        assert not os.environ.get(REQUIRED), error
        pytest.skip(str(error))
    return cluster


@pytest.fixture(scope="session")
def local_cluster(any_cluster: Cluster | KindCluster | None) -> Cluster | None:
    """The cluster in namespaces of this machine; None if the tests run on kind or on KUBECONFIG's cluster."""
    return any_cluster if isinstance(any_cluster, Cluster) else None


@pytest.fixture
def disposable_cluster(local_cluster: Cluster | None) -> Cluster:
    """The local cluster, for scenarios that act on a whole cluster or on its machine."""
    if local_cluster is None:
        pytest.skip(
            "this scenario acts on a whole cluster, so it runs only on the one in namespaces of this machine: "
            "unset KUBECONFIG, and run it on a machine without kind"
        )
    return local_cluster


@pytest.fixture(scope="session")
def kubeconfig(any_cluster: Cluster | KindCluster | None) -> Path:
    return any_cluster.kubeconfig if any_cluster else Path(os.environ["KUBECONFIG"])


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invented intake notes: train.jsonl and eval.jsonl."""
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(_EXAMPLE), "--rows", "700", "--out", str(folder)], check=True)
    return folder


@pytest.fixture
def team(kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """A team's namespace."""
    with _opened(TeamNamespace(kubeconfig, _name()), request) as team:
        yield team


@pytest.fixture
def other_team(kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """Another team's namespace."""
    with _opened(TeamNamespace(kubeconfig, _name()), request) as team:
        yield team


@pytest.fixture
def tls_team(kubeconfig: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """A team's namespace whose S3 server uses TLS, with a certificate of the team's own authority."""
    with _opened(TeamNamespace(kubeconfig, _name(), CertificateAuthority(tmp_path)), request) as team:
        yield team


def _name() -> str:
    return f"clinic-{secrets.token_hex(3)}"


@contextlib.contextmanager
def _opened(team: TeamNamespace, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """Create a test's namespace, and delete it at the end. After a failure, first write logs to files."""
    team.create_namespace()
    ready = False
    try:
        team.deploy_storage()
        ready = True
        yield team
    finally:
        if not ready or request.node.stash.get(_FAILED, False):
            team.write_diagnostics(home() / "dumps" / request.node.name / team.namespace)
        team.delete()
