"""The strings of the resources that are no numbers: names, locations, versions and other text, and maps of them.

A value as read from YAML or JSON comes in. The same value goes out, or a sentence that states what is wrong with it and
how to write it. The blocks of this package use these types.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from tensafe_api.resources.base import Rule
from tensafe_api.resources.string_form import StringForm

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
"""Form of the name of a Kubernetes object (DNS-1123 subdomain)."""
_WORD = r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?"
_OBJECT = "the name of a Kubernetes object such as my-data"

ObjectName = Annotated[str, StringForm(SUBDOMAIN, _OBJECT)]
"""Name of a Kubernetes object (DNS-1123 subdomain)."""
OptionalName = Annotated[str, StringForm(f"({SUBDOMAIN})?", _OBJECT)]
"""Name of a Kubernetes object, or the empty string for the cluster's default."""
QueueName = Annotated[
    str, StringForm(f"({SUBDOMAIN})?", "the name of a queue: at most 63 lower-case letters, digits, - and .", 63)
]
"""Name of a Kueue queue, which becomes the value of a label; or the empty string for none."""
QUALIFIED = rf"({SUBDOMAIN}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?"
"""Form of the key of a label, an annotation or a taint."""
QualifiedName = Annotated[str, StringForm(QUALIFIED, "a key such as zone or example.com/zone", 317)]
"""Key of a taint."""
LabelValue = Annotated[
    str,
    StringForm(
        f"({_WORD})?",
        "the value of a label, such as gpu-a100",
        63,
    ),
]
"""Value of a label or a taint."""
DataKey = Annotated[
    str, StringForm(r"\.?[-_A-Za-z0-9][-_.A-Za-z0-9]*", "a key of a Secret or ConfigMap: letters, digits, -, _ and .")
]
"""Key in the data of a Secret or ConfigMap."""
JobName = Annotated[
    str,
    StringForm(
        r"[a-z]([-a-z0-9]*[a-z0-9])?",
        "the name of a job: lower-case letters, digits and -, with a letter first and no - at the end",
        40,
    ),
]
"""Name of a job: a DNS-1035 label of at most 40 characters, because KubeRay hangs with longer ones."""
_VISIBLE = r"[^\s\x0b]"
"""A character that is not white space. The vertical tab is listed because RE2, which the API server uses, does not
count it as white space."""
_PATH = r"[^:\n]+|[^:/\n]*/.*"
"""A path. Its first name has no colon, as in RFC 3986, so that no misspelt URI is taken for a path."""
_STORES = rf"(s3|gs)://[^/\s\x0b].*|file://.+|pvc://[a-z0-9]([-a-z0-9]{{0,56}}[a-z0-9])?(/.*)?|{_PATH}"
_STORE_EXAMPLES = "s3:// or gs://bucket/path/, file:///path, pvc://NAME/path"
URI = Annotated[
    str,
    StringForm(
        rf"{_STORES}|hf://.+|memory://.+",
        f"a location of data: {_STORE_EXAMPLES}, hf://datasets/owner/name or a path",
        1024,
    ),
]
"""Location of data to read: a URI or a path. A relative path is relative to the manifest and valid for local runs only.
memory:// names a data set that the Python API received as an object."""
StoreURI = Annotated[str, StringForm(_STORES, f"a location of checkpoints: {_STORE_EXAMPLES} or a path", 1024)]
"""Location of checkpoints to write: a URI or a path."""
Address = Annotated[str, Field(strict=True, min_length=1, max_length=8192)]
"""Location of something that was written: a URI, long enough for any path."""
Endpoint = Annotated[
    str, StringForm(rf"https?://[^\s\x0b/]+(/{_VISIBLE}*)?", "a URL such as https://minio.example:9000", 1024)
]
"""URL of an HTTP service."""
Recipient = Annotated[
    str,
    StringForm(
        r"age1[02-9ac-hj-np-z]{58}|ssh-(ed25519|rsa) [A-Za-z0-9+/]+=*( .*)?",
        "a recipient of age, such as an age1... or ssh-ed25519 public key",
        1024,
    ),
]
"""A recipient of age: for whom files are encrypted."""
Timestamp = Annotated[
    str,
    StringForm(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
        "a time such as 2026-01-31T12:00:00Z",
        40,
        format="date-time",
    ),
]
"""A time in the form of RFC 3339."""
OneLine = Annotated[str, StringForm(rf"{_VISIBLE}(.*{_VISIBLE})?", "one line without spaces around it")]
"""One line of text: a name, a column, a revision."""
EnvName = Annotated[str, StringForm(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
"""Name of an environment variable."""
ResourceName = Annotated[
    str,
    StringForm(
        rf"{SUBDOMAIN}/[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?",
        "the name of a device such as nvidia.com/gpu",
        rules=(
            Rule(
                "!self.contains('kubernetes.io/')",
                "is not the name of a device, because Kubernetes reserves kubernetes.io: write a name such as "
                "nvidia.com/gpu",
                lambda text: "kubernetes.io/" not in text,
            ),
        ),
    ),
]
"""Name of an extended Kubernetes resource."""
IMAGE = r"[A-Za-z0-9][-_.A-Za-z0-9]*(:[0-9]+)?(/[-_.a-z0-9]+)*(:[-_.A-Za-z0-9]+)?(@[a-z0-9]+:[0-9a-f]{32,})?"
"""Form of the name of a container image."""
Image = Annotated[
    str,
    StringForm(
        IMAGE,
        "an image such as registry.example/tensafe-trainer:0.1, without spaces and without https://",
        512,
    ),
]
"""Name of a container image."""
RAY_VERSION = r"(2\.(5[2-9]|[6-9][0-9]|[1-9][0-9]{2})|([3-9]|[1-9][0-9])\.[0-9]{1,3})\.[0-9]{1,3}"
"""Form of a version of Ray whose clusters support token authentication. The chart's schema has the same pattern."""
RayVersion = Annotated[
    str,
    StringForm(
        rf"{RAY_VERSION}(rc[0-9]+)?",
        "a version of Ray such as 2.60.0, at least 2.52.0, the first one with token authentication",
        32,
    ),
]
"""Version of Ray, as KubeRay reads it: without the suffixes of an image tag."""

_RESERVED_VOLUMES = ("job", "key", "run", "shared-mem")
VolumeName = Annotated[
    str,
    StringForm(
        _LABEL,
        "the name of a volume: at most 63 lower-case letters, digits and -",
        63,
        (
            Rule(
                f"!(self in {list(_RESERVED_VOLUMES)}) && !self.startsWith('pvc-')",
                f"is reserved for volumes of the operator ({', '.join(_RESERVED_VOLUMES)}, pvc-...): write another "
                "name",
                lambda text: text not in _RESERVED_VOLUMES and not text.startswith("pvc-"),
            ),
        ),
    ),
]
"""Name of a volume of a pod."""
_RESERVED_PATHS = ("/etc/tensafe", "/var/run/tensafe", "/var/run/secrets", "/run/tensafe", "/run/secrets")


def _free(path: str) -> bool:
    return not any(
        f"{place}/".startswith(f"{path}/") or f"{path}/".startswith(f"{place}/") for place in _RESERVED_PATHS
    )


MountPath = Annotated[
    str,
    StringForm(
        r"(/[^/:\r\n]+)+",
        "an absolute path below / such as /mnt/data, without / at the end",
        1024,
        (
            Rule(
                r"!self.matches(r'/\.\.?(/|$)')",
                "must not contain . or .. as a directory: write the resolved path",
                lambda text: not re.search(r"/\.\.?(/|$)", text),
            ),
            Rule(
                f"!{list(_RESERVED_PATHS)}.exists(place, (place + '/').startsWith(self + '/') || "
                "(self + '/').startsWith(place + '/'))",
                f"contains or is inside a directory that the operator mounts ({', '.join(_RESERVED_PATHS)}): write a "
                "path such as /mnt/data",
                _free,
            ),
        ),
    ),
]
"""Directory of a volume in a container."""

Text = Annotated[str, Field(strict=True, max_length=1024)]
"""A string of at most 1,024 characters."""
Template = Annotated[str, Field(strict=True, min_length=1, max_length=32768)]
"""A chat template: at most 32,768 characters."""
LabelMap = Annotated[dict[str, Text], Field(max_length=64)]
"""A map from strings to strings, at most 64 entries."""
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
"""A map from keys to values of labels, at most 64 entries."""
