"""What the operator was installed with: the chart writes it into the environment of its pod.

Everything has a default that suits a local run against a cluster (`python -m tensafe_operator` with KUBECONFIG).
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from tensafe_api.resources.values import IMAGE, RAY_VERSION

_PREFIX = "TENSAFE_"
_FORMS = {"image": (IMAGE, "registry.example/tensafe-trainer:0.1"), "ray_version": (RAY_VERSION, "2.60.0")}
_WHOLE = {"stall_seconds": range(1, 2**31), "port": range(2**16)}


class ConfigurationError(Exception):
    """The operator cannot begin with this environment: one sentence that names the variable and the mend."""


@dataclass(frozen=True)
class Settings:
    """Attributes:
    image: image of workers and head, where a job names none.
    ray_version: Ray's version in that image.
    namespaces: namespaces to look after, separated by commas; none: all.
    own_namespace: namespace of the Lease.
    kuberay_namespace: namespace from which the head's dashboard may be reached.
    egress_cidrs: where pods may connect to beyond the job, DNS and HTTPS, separated by commas.
    stall_seconds: an attempt that charges nothing for so long has stalled.
    port: port of /healthz and /metrics; 0: neither.
    """

    image: str = field(default_factory=lambda: f"tensafe-trainer:{_version()}")
    ray_version: str = "2.60.0"
    namespaces: tuple[str, ...] = ()
    own_namespace: str = "tensafe-system"
    kuberay_namespace: str = "kuberay-system"
    egress_cidrs: tuple[str, ...] = ()
    stall_seconds: int = 1800
    port: int = 8080

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings that TENSAFE_IMAGE, TENSAFE_RAY_VERSION and so on name; lists are separated by commas.

        Raises:
            ConfigurationError: where a number is none, or is out of its range.
        """
        given = {
            name: environment[variable(name)] for name in cls.__dataclass_fields__ if environment.get(variable(name))
        }
        values: dict[str, object] = dict(given)
        for name in ("namespaces", "egress_cidrs"):
            if name in given:
                values[name] = tuple(part.strip() for part in given[name].split(",") if part.strip())
        for name, allowed in _WHOLE.items():
            if name in given:
                values[name] = _whole(variable(name), given[name], allowed)
        for name, (form, example) in _FORMS.items():
            if name in given and not re.fullmatch(form, given[name]):
                raise ConfigurationError(f"{variable(name)} is {given[name]!r}: set it to one such as {example}.")
        for cidr in values.get("egress_cidrs", ()):  # type: ignore[attr-defined]
            _network(cidr)
        return cls(**values)  # type: ignore[arg-type]


def _network(cidr: str) -> None:
    try:
        ipaddress.ip_network(cidr)
    except ValueError as error:
        mend = "set it to networks such as 10.1.0.0/16, separated by commas"
        raise ConfigurationError(f"{variable('egress_cidrs')} has {cidr!r}, which is no network: {mend}.") from error


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.upper()


def explained() -> Iterator[tuple[str, str]]:
    """Each environment variable, and what it is for, with its default."""
    said = dict(re.findall(r"^ *(\w+): (.+)\.$", Settings.__doc__ or "", re.MULTILINE))
    defaults = Settings()
    for each in fields(Settings):
        default = getattr(defaults, each.name)
        yield variable(each.name), said[each.name] + (f" ({default})" if default else "")


def _whole(name: str, text: str, allowed: range) -> int:
    if text.isdecimal() and int(text) in allowed:
        return int(text)
    raise ConfigurationError(f"{name} is {text!r}: set it to a whole number from {allowed[0]} to {allowed[-1]}.")


def _version() -> str:
    return importlib.metadata.version("tensafe")
