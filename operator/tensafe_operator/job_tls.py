"""How the pods of an attempt get certificates for TLS, as an administrator sets it in the chart's value `jobs.tls`."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TlsMode(StrEnum):
    """What creates the authority that issues an attempt's certificates."""

    PER_ATTEMPT = "PerAttempt"
    """The operator, a new one for each attempt."""
    CERT_MANAGER = "CertManager"
    """cert-manager, a new one for each attempt."""
    DISABLED = "Disabled"
    """Ray's messages are not encrypted."""


class IssuerRef(BaseModel):
    """The issuer of cert-manager that signs the authority of each attempt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    kind: str = "ClusterIssuer"
    group: str = "cert-manager.io"


class JobTls(BaseModel):
    """TLS between the Ray nodes of a job.

    Attributes:
        mode: who creates the authority of an attempt's certificates.
        issuer_ref: only for CertManager.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    mode: TlsMode = TlsMode.PER_ATTEMPT
    issuer_ref: IssuerRef = Field(default=IssuerRef(), alias="issuerRef")

    @model_validator(mode="after")
    def _has_issuer(self) -> JobTls:
        if self.mode is TlsMode.CERT_MANAGER and not self.issuer_ref.name:
            raise ValueError("CertManager needs issuerRef.name, the name of an issuer")
        return self

    @property
    def enabled(self) -> bool:
        """Whether Ray's messages are encrypted."""
        return self.mode is not TlsMode.DISABLED
