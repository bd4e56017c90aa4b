"""Fixtures that several packages of the trainer's tests use."""

from __future__ import annotations

import functools
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import botocore.retryhandler
import pytest
from s3fs import S3FileSystem

from tensorguard.models import matrix_library
from tensorguard.privacy import noise
from tests.support import soft_hsm as soft_hsms
from tests.support.programs import s3, sigstore

matrix_library.use_reproducible_products()  # as a worker does, before the first product of matrices
_noise_table = functools.lru_cache(maxsize=64)(noise._Table)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests with the longest time limits first, so that none of them runs alone at the end.

    Next come those of `training`. pytest-xdist gives the first half of all tests to one process, so one fork server,
    whose imports take 8 s, is enough for all jobs.
    """

    def time_limit(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return float(mark.args[0]) if mark else 0.0

    items.sort(key=lambda item: (-time_limit(item), "training" not in item.path.parts))


@pytest.fixture
def foreground_signals() -> Iterator[None]:
    """Handle signals as a terminal's foreground process does: a shell ignores SIGINT in its background jobs."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def shared_noise_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the noise tables of each σ once: a run builds them in 65 ms, and these tests start hundreds of runs."""
    monkeypatch.setattr(noise, "_Table", _noise_table)


@pytest.fixture
def soft_hsm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> soft_hsms.SoftHSM:
    """A software HSM with an empty token named release."""
    if reason := soft_hsms.missing():
        pytest.skip(reason)
    found = soft_hsms.SoftHSM(tmp_path_factory.mktemp("hsm") / "hsm")
    monkeypatch.setenv("SOFTHSM2_CONF", str(found.config))
    found.add_token()
    return found


@pytest.fixture(scope="session")
def sigstore_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sigstore.Sigstore]:
    """A private Sigstore instance, one for all tests of this process."""
    with sigstore.instance(tmp_path_factory.mktemp("sigstore")) as found:
        yield found


@pytest.fixture
def identity(
    sigstore_instance: sigstore.Sigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> sigstore.Sigstore:
    """The same instance, with a token for its usual identity in a file that the environment names."""
    token = tmp_path / "identity-token"
    token.write_text(f"{sigstore_instance.provider.token()}\n")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN_FILE", str(token))
    return sigstore_instance


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3]:
    """A real S3 server, one for all tests of this process."""
    with s3.server(tmp_path_factory.mktemp("s3") / "objects") as found:
        yield found


@pytest.fixture
def s3_bucket(s3_server: s3.S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    """The same server, with the keys and the endpoint in the environment variables that clients read."""
    yield from _in_environment(s3_server, monkeypatch)


@pytest.fixture
def s3_tls_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    """An S3 server that speaks TLS, with a certificate that only an environment variable makes trusted."""
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    monkeypatch.setattr(botocore.retryhandler, "delay_exponential", lambda *_, **__: 0.0)
    with s3.server(tmp_path / "objects", tls=True) as found:
        yield from _in_environment(found, monkeypatch)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The folder for temporary files of the command. Its path is short: the paths of Ray's sockets start with it."""
    directory = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def _in_environment(server: s3.S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    yield server
    S3FileSystem.clear_instance_cache()  # cached instances keep the keys
