"""`make package SHORT=1`: chart, wheel, CRDs, bills of materials and checksums. The images take minutes and gigabytes:
docs/how-to/air-gapped.md reports the run with them.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tests.support.programs.controlplane import built
from tests.support.programs.helm import render_chart
from tests.support.programs.tools import tool

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
VERSION = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
CHART, WHEEL, CRDS = f"tensafe-{VERSION}.tgz", f"tensafe-{VERSION}-py3-none-any.whl", f"crds-{VERSION}.yaml"
PIPX = "1.18.4"
BILLS = [f"tensafe-{name}-packages-{VERSION}.spdx.json" for name in ("operator", "trainer")]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tool("helm"), tool("syft")  # a skip, with its reason, where they cannot be built
    folder = tmp_path_factory.mktemp("package")
    (folder / "tensafe-0.0.9.tgz").write_text("of an earlier run")
    environment = {**os.environ, "OUT": str(folder), "SHORT": "1"}
    done = subprocess.run(
        [str(ROOT / "scripts" / "package")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the images are left out" in done.stderr
    return folder


def test_package_has_these_files_and_their_checksums(package: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (package / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {CHART, WHEEL, CRDS, *BILLS}
    assert {path.name for path in package.iterdir()} == {*sums, "SHA256SUMS"}
    for name, expected in sums.items():
        assert hashlib.sha256((package / name).read_bytes()).hexdigest() == expected


def test_packaged_chart_renders_as_the_folder(package: Path) -> None:
    for values in ({}, {"limits.enabled": True, "metrics.prometheusRule.enabled": True, "namespaces": ["clinic"]}):
        assert render_chart(values, chart=package / CHART, tests=True) == render_chart(values, tests=True)


def test_crds_are_those_of_the_chart(package: Path) -> None:
    documents = [each for each in yaml.safe_load_all((package / CRDS).read_text()) if each]
    assert len(documents) == 7
    rendered = render_chart()
    assert all(each in rendered for each in documents)


def test_wheel_has_the_packages_and_no_test(package: Path) -> None:
    with zipfile.ZipFile(package / WHEEL) as wheel:
        names = wheel.namelist()
        assert wheel.testzip() is None
    top = {name.split("/")[0] for name in names}
    assert top == {"tensafe_api", "tensafe_kubectl", "tensafe_operator", "tensorguard", f"tensafe-{VERSION}.dist-info"}
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest\.py|test_[^/]*)(/|$)", name)]
    assert "tensafe_operator/installation.py" in names


@pytest.mark.parametrize("name", BILLS)
def test_bill_of_materials_is_valid_spdx_and_has_the_pinned_packages(package: Path, name: str) -> None:
    document = parse_file(str(package / name))
    assert validate_full_spdx_document(document) == []
    found = {(each.name, each.version) for each in document.packages}
    assert ("tensafe", VERSION) in found
    pins = (ROOT / "requirements" / f"{name.split('-')[1]}.txt").read_text()
    plain = re.findall(r"^([a-z0-9-]+)==(\S+)$", pins, re.MULTILINE)  # of those with a marker, one of several is right
    assert len(plain) > 20
    assert set(plain) <= found


def test_same_sources_give_the_same_wheel(package: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OUT": str(tmp_path), "SHORT": "1"}
    subprocess.run([str(ROOT / "scripts" / "package")], env=environment, capture_output=True, check=True)
    assert (tmp_path / WHEEL).read_bytes() == (package / WHEEL).read_bytes()


@pytest.mark.slow
def test_pipx_installs_the_plugin_from_the_wheel(package: Path, tmp_path: Path) -> None:
    """As `docs/how-to/kubectl.md` does, with what the extra `kubectl` names. kubectl finds the program by its name."""
    venv.create(tmp_path / "venv", with_pip=True)
    python, programs = str(tmp_path / "venv" / "bin" / "python"), tmp_path / "bin"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"pipx=={PIPX}"], check=True)
    environment = {**os.environ, "PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(programs), "PYTHONPATH": ""}
    install = [python, "-m", "pipx", "install", f"{package / WHEEL}[kubectl]"]
    subprocess.run(install, env=environment, check=True)
    path = {**environment, "PATH": f"{programs}:{os.environ['PATH']}"}
    for command in (["kubectl-tensafe", "--help"], [str(built("kubectl")), "tensafe", "--help"]):
        done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("usage: kubectl tensafe")
    installed = {path.name.partition("-")[0] for path in (tmp_path / "home").rglob("*.dist-info")}
    assert "kubernetes" in installed and not installed & {"torch", "ray", "opacus"}
