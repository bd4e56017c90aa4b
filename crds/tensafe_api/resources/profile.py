"""`TenSafeClusterProfile`: the settings of a cluster that its administrator keeps for all jobs.

A job names a profile in `cluster.profileRef`. The operator takes from it what the job leaves out. A profile has no
field that a privacy figure depends on, and none of a job's size: each worker and each GPU adds a share of the noise.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tensafe_api.resources.base import Block
from tensafe_api.resources.pods import PodSettings
from tensafe_api.resources.strings import LabelMap, ObjectName, Text
from tensafe_api.resources.training import Storage

PROFILE_KIND: Literal["TenSafeClusterProfile"] = "TenSafeClusterProfile"


class ProfileMetadata(Block):
    """Metadata of the object, as in Kubernetes."""

    name: ObjectName = Field(description="Name of the profile, which jobs write in cluster.profileRef.")
    labels: LabelMap = Field(default_factory=dict, description="Labels of the profile.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the profile.")
    uid: Text | None = Field(None, description="Unique id of the profile, set by the API server.")
    resource_version: Text | None = Field(None, description="Version of the object, set by the API server.")


class ProfileSpec(PodSettings):
    """Settings for all jobs that name the profile. A value that a job gives takes precedence."""

    storage: Storage = Field(default_factory=Storage, description="Access to object storage, as in a job.")


class TenSafeClusterProfile(Block):
    """Settings of a cluster that its administrator keeps, and that jobs take by name with cluster.profileRef."""

    api_version: Literal["tensafe.io/v1alpha1"] = Field(
        "tensafe.io/v1alpha1", description="API version of the object: tensafe.io/v1alpha1."
    )
    kind: Literal["TenSafeClusterProfile"] = Field(
        PROFILE_KIND, description="Kind of the object: TenSafeClusterProfile."
    )
    metadata: ProfileMetadata = Field(description="Metadata of the object.")
    spec: ProfileSpec = Field(
        description="Settings for all jobs that name the profile. A value that a job gives takes precedence."
    )
