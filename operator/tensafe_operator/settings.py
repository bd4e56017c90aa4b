"""What the operator was installed with: the chart writes it into the environment of its pod.

Everything has a default that suits a local run against a cluster (`python -m tensafe_operator` with KUBECONFIG).
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

_PREFIX = "TENSAFE_"


@dataclass(frozen=True)
class Settings:
    """Attributes:
    image: of workers and head, where a job names none.
    ray_version: of that image.
    namespaces: to look after; empty: all.
    own_namespace: where the Lease is.
    kuberay_namespace: from where the head's dashboard may be reached.
    egress_cidrs: where pods may connect to beyond the job, DNS and HTTPS.
    stall_seconds: an attempt that charges nothing for so long has stalled.
    """

    image: str = field(default_factory=lambda: f"tensafe-trainer:{_version()}")
    ray_version: str = "2.60.0"
    namespaces: tuple[str, ...] = ()
    own_namespace: str = "tensafe-system"
    kuberay_namespace: str = "kuberay-system"
    egress_cidrs: tuple[str, ...] = ()
    stall_seconds: int = 1800

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings that TENSAFE_IMAGE, TENSAFE_RAY_VERSION and so on name; lists are separated by commas."""
        given = {
            name: environment[_PREFIX + name.upper()]
            for name in cls.__dataclass_fields__
            if environment.get(_PREFIX + name.upper())
        }
        values: dict[str, object] = dict(given)
        for name in ("namespaces", "egress_cidrs"):
            if name in given:
                values[name] = tuple(part.strip() for part in given[name].split(",") if part.strip())
        if "stall_seconds" in given:
            values["stall_seconds"] = int(given["stall_seconds"])
        return cls(**values)  # type: ignore[arg-type]


def _version() -> str:
    return importlib.metadata.version("tensafe")
