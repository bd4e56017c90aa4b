"""The operator's settings, read from environment variables that the Helm chart sets in its pod.

Each setting has a default that suits a local run against a cluster (`python -m tensafe_operator` with KUBECONFIG).
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError

from tensafe_api.resources.strings import IMAGE, RAY_VERSION, SUBDOMAIN
from tensafe_operator.job_network import JobNetwork
from tensafe_operator.job_tls import JobTls
from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.lease_durations import DEFAULT_DURATIONS, LeaseDurations

_PREFIX = "TENSAFE_"


@dataclass(frozen=True)
class Settings:
    """Attributes:
    image: image of the pods of jobs that name none.
    ray_version: version of Ray in that image.
    namespaces: namespaces to operate in, separated by commas; empty: all.
    own_namespace: namespace of the operator's Lease.
    lease: name of the Lease that the leader holds.
    lease_seconds: another replica may lead so long after the leader's last renewal.
    renew_seconds: the leader stops writing so long after its last renewal.
    retry_seconds: time between two renewals, and limit of each of their requests.
    kuberay_namespace: namespace that may connect to the Ray dashboard.
    egress_cidrs: networks that job pods may connect to on all ports, separated by commas.
    job_network: what else job pods may connect to, as JSON.
    job_tls: TLS between the Ray nodes of a job, as JSON.
    fs_group: group id of the volumes of jobs; None leaves it to the cluster.
    read_only_root: true: containers of jobs write to volumes only.
    pull_secrets: Secrets of jobs' namespaces to pull images with, separated by commas.
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
    lease_seconds: int = DEFAULT_DURATIONS.lease
    renew_seconds: int = int(DEFAULT_DURATIONS.renew_deadline)
    retry_seconds: int = int(DEFAULT_DURATIONS.retry_period)
    kuberay_namespace: str = "kuberay-system"
    egress_cidrs: tuple[str, ...] = ()
    job_network: JobNetwork = field(default_factory=JobNetwork)
    job_tls: JobTls = field(default_factory=JobTls)
    fs_group: int | None = 1000
    read_only_root: bool = True
    pull_secrets: tuple[str, ...] = ()
    stall_seconds: int = 1800
    port: int = 8080
    metrics_per_job: bool = True
    metrics_auth: bool = False
    metrics_tls: str = ""

    @property
    def lease_durations(self) -> LeaseDurations:
        return LeaseDurations(self.lease_seconds, self.renew_seconds, self.retry_seconds)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings in TENSAFE_IMAGE, TENSAFE_RAY_VERSION and so on. An empty variable counts as not set.

        Raises:
            ConfigurationError: if a value does not have the form or range of its setting, or the durations of the Lease
                do not fit together.
        """
        given = {
            name: environment[variable(name)] for name in cls.__dataclass_fields__ if environment.get(variable(name))
        }
        values: dict[str, Any] = {
            name: _READERS[name](variable(name), text) if name in _READERS else text for name, text in given.items()
        }
        settings = cls(**values)
        _check_durations(settings.lease_durations)
        return settings


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


def _check_durations(durations: LeaseDurations) -> None:
    """Raises:
    ConfigurationError: if two replicas could lead at a time, or one slow answer would end the leadership.
    """
    renew, retry = variable("renew_seconds"), variable("retry_seconds")
    if durations.renew_deadline >= durations.lease:
        limit = f"below {variable('lease_seconds')}, which is {durations.lease}"
        why = "so that only one replica leads"
        raise ConfigurationError(f"{renew} is {durations.renew_deadline}: set it {limit}, {why}.")
    if durations.renew_deadline <= 3 * durations.retry_period:
        limit = f"above three times {retry}, which is {durations.retry_period}"
        raise ConfigurationError(f"{renew} is {durations.renew_deadline}: set it {limit}: a renewal may take so long.")


def _list(name: str, text: str) -> tuple[str, ...]:
    """What is between the commas. name: of the variable, as for all readers of a text."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _networks(name: str, text: str) -> tuple[str, ...]:
    for cidr in (cidrs := _list(name, text)):
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            fix = "set it to networks such as 10.1.0.0/16, separated by commas"
            raise ConfigurationError(f"{name} has {cidr!r}, which is not a network: {fix}.") from error
    return cidrs


def _secret_names(name: str, text: str) -> tuple[str, ...]:
    for secret in (secrets := _list(name, text)):
        if len(secret) > 253 or not re.fullmatch(SUBDOMAIN, secret):
            fix = "set it to names of Secrets, separated by commas"
            raise ConfigurationError(f"{name} has {secret!r}, which is no name of a Secret: {fix}.")
    return secrets


def _flag(name: str, text: str) -> bool:
    if text in ("true", "false"):
        return text == "true"
    raise ConfigurationError(f"{name} is {text!r}: set it to true or false.")


def _whole(allowed: range, name: str, text: str) -> int:
    if text.isdecimal() and int(text) in allowed:
        return int(text)
    raise ConfigurationError(f"{name} is {text!r}: set it to a whole number from {allowed[0]} to {allowed[-1]}.")


def _group(name: str, text: str) -> int | None:
    return None if text == "None" else _whole(range(2**31), name, text)


def _like(pattern: str, example: str, name: str, text: str) -> str:
    if re.fullmatch(pattern, text):
        return text
    raise ConfigurationError(f"{name} is {text!r}: set it to a value such as {example}.")


def _parse_chart_value(model: type[BaseModel], value: str, name: str, text: str) -> BaseModel:
    """A setting that the chart writes as JSON, from one of its values."""
    try:
        return model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"])) or "the whole"
        fix = f"set it as the chart does from `{value}`"
        raise ConfigurationError(f"{name} is wrong in {place} ({found['msg']}): {fix}.") from error


_DURATION = partial(_whole, range(1, 3601))
_READERS: dict[str, Callable[[str, str], object]] = {
    "image": partial(_like, IMAGE, "registry.example/tensafe-trainer:0.1"),
    "ray_version": partial(_like, RAY_VERSION, "2.60.0"),
    "namespaces": _list,
    "lease_seconds": _DURATION,
    "renew_seconds": _DURATION,
    "retry_seconds": _DURATION,
    "egress_cidrs": _networks,
    "job_network": partial(_parse_chart_value, JobNetwork, "jobs.networkPolicy"),
    "job_tls": partial(_parse_chart_value, JobTls, "jobs.tls"),
    "fs_group": _group,
    "read_only_root": _flag,
    "pull_secrets": _secret_names,
    "stall_seconds": partial(_whole, range(1, 2**31)),
    "port": partial(_whole, range(2**16)),
    "metrics_per_job": _flag,
    "metrics_auth": _flag,
}
"""What reads the text of a variable, by the setting. The others are texts without a rule."""


def _version() -> str:
    return importlib.metadata.version("tensafe")
