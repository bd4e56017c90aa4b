"""A cluster with pods for tests that are marked `e2e`: this machine's own, or the one that KUBECONFIG names."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.platform.cluster import Cluster
from e2e.platform.controlplane import Authority
from e2e.platform.fixtures.stopwatch import Stopwatch
from e2e.platform.fixtures.team_namespace import TeamNamespace
from e2e.platform.gotools import GoUnavailable, home
from e2e.platform.node import UnsupportedMachine

_EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart" / "make_data.py"
REQUIRED = "TENSAFE_E2E_REQUIRED"
"""Environment variable: set where scenarios that cannot run are a failure."""
_STOPWATCH = Stopwatch(home() / "times.jsonl", here=not os.environ.get("KUBECONFIG"))
_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the fixtures of a test know that it has failed."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    if report.failed:  # a long run tells all failures at its end, which is late for who watches it
        folder = home() / "dumps" / item.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.txt").write_text(report.longreprtext)
    return report


def pytest_report_header() -> str:
    return f"scenarios on pods: {os.environ.get('KUBECONFIG') or 'a cluster of this machine alone'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _STOPWATCH.lines:
        terminalreporter.section("how long it took")
        for line in _STOPWATCH.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def stopwatch() -> Stopwatch:
    return _STOPWATCH


@pytest.fixture(scope="session")
def local_cluster(request: pytest.FixtureRequest) -> Cluster | None:
    """This machine's cluster, up; None where the tests are pointed at another one."""
    if os.environ.get("KUBECONFIG"):
        return None
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(what: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {what}", end="", flush=True)

    cluster = Cluster(say)
    try:
        with _STOPWATCH("cluster up, with KubeRay and TenSafe"):
            cluster.up()
    except (UnsupportedMachine, GoUnavailable) as error:
        assert not os.environ.get(REQUIRED), error
        pytest.skip(str(error))
    return cluster


@pytest.fixture
def disposable_cluster(local_cluster: Cluster | None) -> Cluster:
    """For what is done to a whole cluster, or to the machine that it runs on: only our own."""
    if local_cluster is None:
        pytest.skip("this is done to a whole cluster, and only to one of our own: unset KUBECONFIG")
    return local_cluster


@pytest.fixture(scope="session")
def kubeconfig(local_cluster: Cluster | None) -> Path:
    return local_cluster.kubeconfig if local_cluster else Path(os.environ["KUBECONFIG"])


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invented intake notes: train.jsonl and eval.jsonl."""
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(_EXAMPLE), "--rows", "700", "--out", str(folder)], check=True)
    return folder


@pytest.fixture
def team(kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """A team's namespace."""
    with _opened(TeamNamespace(kubeconfig, _name()), request) as made:
        yield made


@pytest.fixture
def other_team(kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """Another team's."""
    with _opened(TeamNamespace(kubeconfig, _name()), request) as made:
        yield made


@pytest.fixture
def tls_team(kubeconfig: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """A team's namespace whose S3 server speaks TLS, with a certificate of the team's own authority."""
    with _opened(TeamNamespace(kubeconfig, _name(), Authority(tmp_path)), request) as made:
        yield made


def _name() -> str:
    return f"clinic-{secrets.token_hex(3)}"


@contextlib.contextmanager
def _opened(made: TeamNamespace, request: pytest.FixtureRequest) -> Iterator[TeamNamespace]:
    """A namespace of a test. When that fails, or does not begin, all about it is written down before it is deleted."""
    made.create_namespace()
    begun = False
    try:
        made.deploy_storage()
        begun = True
        yield made
    finally:
        if not begun or request.node.stash.get(_FAILED, False):
            made.write_diagnostics(home() / "dumps" / request.node.name / made.namespace)
        made.delete()
