"""The operator's settings, read from environment variables that the Helm chart sets in its pod.

Each setting has a default that suits a local run against a cluster (`python -m tensafe_operator` with KUBECONFIG).
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from pydantic import ValidationError

from tensafe_api.resources.strings import IMAGE, RAY_VERSION
from tensafe_operator.job_network import JobNetwork
from tensafe_operator.runtime.errors import ConfigurationError

_PREFIX = "TENSAFE_"
_PATTERNS = {"image": (IMAGE, "registry.example/tensafe-trainer:0.1"), "ray_version": (RAY_VERSION, "2.60.0")}
_RANGES = {"fs_group": range(2**31), "stall_seconds": range(1, 2**31), "port": range(2**16)}
_FLAGS = ("read_only_root", "metrics_per_job", "metrics_auth")


@dataclass(frozen=True)
class Settings:
    """Attributes:
    image: image of the pods of jobs that name none.
    ray_version: version of Ray in that image.
    namespaces: namespaces to operate in, separated by commas; empty: all.
    own_namespace: namespace of the operator's Lease.
    lease: name of the Lease that the leader holds.
    kuberay_namespace: namespace that may connect to the Ray dashboard.
    egress_cidrs: networks that job pods may connect to on all ports, separated by commas.
    job_network: what else job pods may connect to, as JSON.
    fs_group: group id of the volumes of jobs; None leaves it to the cluster.
    read_only_root: true: containers of jobs write to volumes only.
    stall_seconds: an attempt that charges no step for so many seconds has stalled.
    port: port of /healthz and /metrics; 0 serves neither.
    metrics_per_job: whether /metrics names jobs, true or false.
    metrics_auth: whether /metrics needs a token, true or false.
    metrics_tls: folder with tls.crt and tls.key for both; empty: plain HTTP.
    """

    image: str = field(default_factory=lambda: f"tensafe-trainer:{_version()}")
    ray_version: str = "2.60.0"
    namespaces: tuple[str, ...] = ()
    own_namespace: str = "tensafe-system"
    lease: str = "tensafe-operator"
    kuberay_namespace: str = "kuberay-system"
    egress_cidrs: tuple[str, ...] = ()
    job_network: JobNetwork = field(default_factory=JobNetwork)
    fs_group: int | None = 1000
    read_only_root: bool = True
    stall_seconds: int = 1800
    port: int = 8080
    metrics_per_job: bool = True
    metrics_auth: bool = False
    metrics_tls: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings in TENSAFE_IMAGE, TENSAFE_RAY_VERSION and so on. An empty variable counts as not set.

        Raises:
            ConfigurationError: if a value does not have the form or range of its setting.
        """
        given = {
            name: environment[variable(name)] for name in cls.__dataclass_fields__ if environment.get(variable(name))
        }
        values: dict[str, object] = dict(given)
        for name in ("namespaces", "egress_cidrs"):
            if name in given:
                values[name] = tuple(part.strip() for part in given[name].split(",") if part.strip())
        for name, allowed in _RANGES.items():
            if name in given:
                left_out = name == "fs_group" and given[name] == "None"
                values[name] = None if left_out else _whole_number(variable(name), given[name], allowed)
        for name in _FLAGS:
            if name in given:
                values[name] = _flag(variable(name), given[name])
        for name, (pattern, example) in _PATTERNS.items():
            if name in given and not re.fullmatch(pattern, given[name]):
                raise ConfigurationError(f"{variable(name)} is {given[name]!r}: set it to a value such as {example}.")
        for cidr in values.get("egress_cidrs", ()):  # type: ignore[attr-defined]
            _check_network(cidr)
        if "job_network" in given:
            values["job_network"] = _job_network(given["job_network"])
        return cls(**values)  # type: ignore[arg-type]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.upper()


def describe_variables() -> Iterator[tuple[str, str]]:
    """Each environment variable, and its description with the default."""
    descriptions = dict(re.findall(r"^ *(\w+): (.+)\.$", Settings.__doc__ or "", re.MULTILINE))
    defaults = Settings()
    for each in fields(Settings):
        default = getattr(defaults, each.name)
        shown = isinstance(default, str | int) and default
        text = str(default).lower() if isinstance(default, bool) else default
        yield variable(each.name), descriptions[each.name] + (f" (default {text})" if shown else "")


def _check_network(cidr: str) -> None:
    try:
        ipaddress.ip_network(cidr)
    except ValueError as error:
        fix = "set it to networks such as 10.1.0.0/16, separated by commas"
        raise ConfigurationError(f"{variable('egress_cidrs')} has {cidr!r}, which is not a network: {fix}.") from error


def _job_network(text: str) -> JobNetwork:
    try:
        return JobNetwork.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"])) or "the whole"
        fix = "set it as the chart does from `jobs.networkPolicy`"
        raise ConfigurationError(f"{variable('job_network')} is wrong in {place} ({found['msg']}): {fix}.") from error


def _flag(name: str, text: str) -> bool:
    if text in ("true", "false"):
        return text == "true"
    raise ConfigurationError(f"{name} is {text!r}: set it to true or false.")


def _whole_number(name: str, text: str, allowed: range) -> int:
    if text.isdecimal() and int(text) in allowed:
        return int(text)
    raise ConfigurationError(f"{name} is {text!r}: set it to a whole number from {allowed[0]} to {allowed[-1]}.")


def _version() -> str:
    return importlib.metadata.version("tensafe")
