"""The form of a privacy statement, for its readers: types, units, and a JSON schema.

`statement.build_statement` writes a statement; a reader validates one here before it uses it, because it may come from
anywhere. Fields that a reader does not know are kept and ignored, so that a later release can add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from tensafe_api.accounting.composition import AccountantName
from tensafe_api.resources.mechanism import MAX_EARLIER_TRAININGS, Adjacency, Mechanism, PrivacyEvent
from tensafe_api.statement.contents import SCHEMA


def _below_one(delta: str) -> str:
    if not 0 < float(delta) < 1:
        raise ValueError(f"{delta} is not above 0 and below 1")
    return delta


Epsilon = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]{1,3})?|inf)$")]
"""In nats, with at most three decimals, rounded up."""
DecimalText = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$", max_length=400)]
Delta = Annotated[DecimalText, AfterValidator(_below_one)]
"""A probability above 0 and below 1. Any ε holds with δ = 1."""
Count = Annotated[int, Field(strict=True, ge=0)]


def _without_null(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]


class StatementError(ValueError):
    """A statement cannot be used. `str()` names the field and what is wrong."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, alias_generator=to_camel, populate_by_name=True)


class JobPart(_Part):
    """Where the adapter comes from."""

    name: str = Field(description="Name of the job.")
    uid: str = Field(description="UID of the job.")
    attempt: Count = Field(description="Attempt that wrote the checkpoint.")
    step: Count = Field(description="Number of training steps in the adapter.")


class ClaimPart(_Part):
    """The privacy claim, and what it is about."""

    epsilon: Epsilon = Field(description="ε of `steps` steps, in nats.")
    target_epsilon: DecimalText = Field(description="ε that the job may not exceed, in nats.")
    delta: Delta = Field(description="δ, a probability above 0 and below 1.")
    unit: Literal["Example", "User"] = Field(description="What ε protects.")
    unit_column: str | None = Field(None, description="Column whose values are the users. Absent for examples.")
    unit_definition: str = Field(description="The unit in words.")
    adjacency: Adjacency = Field(description="Which data sets are neighbours.")
    adjacency_definition: str = Field(description="The adjacency in words.")
    steps: Count = Field(description="Steps of this job that the claim covers.")
    released: str = Field(description="What the claim holds for.")
    covers: str = Field(description="The steps that the claim covers, in words.")


class SpentPart(_Part):
    """What was charged to the ledger when the statement was written."""

    epsilon: Epsilon = Field(description="ε of the charged steps, in nats.")
    steps_charged: Count
    steps_recharged: Count = Field(description="Charged steps that ran again after a crash.")
    steps_planned: Count


class MechanismPart(Mechanism):
    """The mechanism that ran, and the one that the accounting assumes."""

    model_config = ConfigDict(extra="allow")

    assumed: str = Field(description="The mechanism that the accounting assumes.")
    run: str = Field(description="The mechanism that ran.")
    dimension: Count = Field(description="Coordinates of a gradient.")
    noise_distance_per_draw: DecimalText = Field(
        description="Total variation distance between one draw of the noise sampler and the discrete Gaussian."
    )


class AccountingPart(_Part):
    """How ε was computed."""

    accountant: AccountantName
    library: str = Field(description="Library that computed ε, with its version.")
    loss_interval: DecimalText | None = Field(None, description="PLD only: interval of privacy losses, in nats.")
    share_of_sigma_for_discrete_noise: DecimalText = Field(description="Share of σ that every ε leaves out.")
    share_of_delta_for_noise_sampler: DecimalText = Field(description="Share of δ that pays for the samplers.")
    unit_at_least: Count = Field(description="Public lower bound of the number of units.")


class HashesPart(_Part):
    """Digests and versions of what was used."""

    adapter: str = Field(description="Digest of `adapter_model.safetensors`.")
    dataset: str = Field(description="Digest of the data set under a key that the readers do not have.")
    ledger_head: str = Field(description="Hash of the newest record of the ledger.")
    ledger_length: Count = Field(description="Number of records in the ledger.")
    audit_log_head: str | None = Field(None, description="Hash of the newest entry of the audit log, if one is kept.")
    audit_log_length: Count | None = Field(None, description="Number of entries in the audit log.")
    code: str
    ray: str
    image: str

    @model_validator(mode="after")
    def _audit_log_is_whole(self) -> Self:
        if (self.audit_log_head is None) != (self.audit_log_length is None):
            raise PydanticCustomError("audit_log", "auditLogHead and auditLogLength belong together: one is missing")
        return self


class StartedFromPart(_Part):
    """The adapter that the training started from, and the claim of its statement."""

    uri: str = Field(description="Where the adapter was read.")
    adapter: str = Field(description="Digest of its `adapter_model.safetensors`.")
    statement: str = Field(description="Digest of its `statement.json`.")
    epsilon: Epsilon = Field(description="ε that its statement claims, in nats.")
    delta: Delta = Field(description="δ of that claim, a probability above 0 and below 1.")
    noise_distance: DecimalText = Field(
        description="Total variation distance between all noise of its training, with the trainings before it, and "
        "discrete Gaussians."
    )


class StatementDocument(_Part):
    """The content of `statement.json`."""

    schema_: Literal["tensafe.io/statement/v1alpha1"] = Field(alias="schema")
    job: JobPart
    claim: ClaimPart
    spent: SpentPart
    mechanism: MechanismPart
    events: list[PrivacyEvent] = Field(
        min_length=1,
        max_length=MAX_EARLIER_TRAININGS + 1,
        description="Privacy events, those of this job last.",
    )
    accounting: AccountingPart
    hashes: HashesPart
    model: dict[str, str] | Literal["not known"] = Field(description="The base model: name and digest of its weights.")
    started_from: StartedFromPart | None = Field(
        default_factory=lambda: None,
        json_schema_extra=_without_null,
        description="The adapter that the training started from. Absent for new factors; null is refused.",
    )
    lineage: str
    evaluation: str
    private_metrics: str
    budget: str
    assumed: list[str] = Field(description="What the claim assumes, in sentences.")
    not_covered: list[str] = Field(description="What the claim does not cover, in sentences.")
    remarks: list[str]

    @field_validator("started_from", mode="before")
    @classmethod
    def _names_an_adapter(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("null", "it is null and names no adapter: statements of new factors leave it out")
        return value


def parse_statement(document: Any) -> StatementDocument:
    """A statement that was read as JSON, with its types checked. No figure is computed.

    Raises:
        StatementError: names the field.
    """
    if not isinstance(document, Mapping):
        raise StatementError("it is not a JSON object")
    if document.get("schema") != SCHEMA:
        raise StatementError(f"it has the schema {document.get('schema')}, and this release reads {SCHEMA}")
    try:
        return StatementDocument.model_validate(document, by_name=False)
    except ValidationError as error:
        first = error.errors()[0]
        raise StatementError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def check_counts(document: StatementDocument) -> None:
    """Check that every step in the adapter, and every training before it, is among the privacy events.

    The ε of a statement may follow from its events, and the events may still be those of fewer steps than it names.

    Raises:
        StatementError: names the field.
    """
    step, spent = document.job.step, document.spent
    charged, once = spent.steps_charged, spent.steps_charged - spent.steps_recharged
    if once < 0:
        raise StatementError(f"spent.stepsRecharged: it is {spent.steps_recharged}, and only {charged} are charged")
    if step > charged:
        raise StatementError(f"job.step: the adapter has {step} steps, and only {charged} are charged")
    if step > once:
        raise StatementError(f"job.step: the adapter has {step} steps, and only {once} are charged a first time")
    if once > spent.steps_planned:
        raise StatementError(
            f"spent.stepsPlanned: it is {spent.steps_planned}, and {once} steps are charged a first time"
        )
    if document.started_from is not None and not document.mechanism.earlier_steps:
        raise StatementError("startedFrom: the job started from an adapter whose training is in no privacy event")
