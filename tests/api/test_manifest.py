"""Reading and writing manifests, and reporting all problems at once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.manifest.text import ManifestError, Problem, dump_manifest, load_manifest, parse_job
from tensafe_api.resources.status import Status
from tests.support.manifests import MINIMAL, changed
from tests.support.rejected_manifests import INVALID_MANIFESTS

ManifestWith = Callable[[Mapping[str, Any]], dict[str, Any]]

SHORTEST = """
apiVersion: tensafe.io/v1alpha1
kind: TenSafeTrainingJob
metadata: {name: claims-triage}
spec:
  model: {name: Qwen/Qwen3-0.6B}
  dataset:
    uri: s3://clinic/claims/
    columns: {messages: messages}
    unit: {kind: User, column: patient_id, maxExamplesPerUnit: 8, atLeast: 5000}
  privacy: {targetEpsilon: "8"}
  checkpoint: {uri: s3://models/claims-triage/}
  cluster: {workers: 2, serviceAccountName: trainer}
"""

WHOLE = """
apiVersion: tensafe.io/v1alpha1
kind: TenSafeTrainingJob
metadata:
  name: claims-triage
  namespace: clinic
  labels: {team: triage}
  annotations: {tensafe.io/note: "a: b"}
  uid: 3f2a91c0-0000-4000-8000-000000000000
spec:
  model: {name: meta-llama/Llama-3.1-8B, revision: main, task: CausalLM, tokenSecret: {name: hub, key: HF_TOKEN},
          quantization: NF4, trustRemoteCode: false, sharding: Workers,
          chatTemplate: "{{ messages }}"}
  lora: {rank: 16, alpha: 32, variant: Standard, dropout: "0.05", targetModules: [q_proj, v_proj], layers: [0],
         modulesToSave: [], initSeed: 7,
         initFrom: {uri: s3://clinic/models/2025/final,
                    earlierSteps: [{sampleRate: "0.01", noiseMultiplier: "0.9", steps: 1000}]}}
  dataset:
    uri: s3://clinic/claims/
    format: jsonl
    columns: {messages: m, tools: t}
    lossOn: Assistant
    overLength: Truncate
    unusable: Skip
    nullValues: ["NULL"]
    unit: {kind: User, column: patient_id, maxExamplesPerUnit: 8, missing: OwnUnit, atLeast: 5000}
    lineage: claims-2026
  evaluation: {uri: s3://public/claims-eval/, visibility: Public, everySteps: 100}
  training: {epochs: "3", expectedBatchSize: 512, microBatchSize: 8, learningRate: "2e-4", schedule: Linear,
             weightDecay: "0.01", warmupRatio: "0.03", maxLength: 512, precision: bf16, gradientCheckpointing: false}
  privacy: {targetEpsilon: "8", targetDelta: "1e-6", maxGradNorm: "1.0", noiseMultiplier: "0.8", accountant: RDP,
            onBudgetExhausted: Stop, reserveSteps: 200}
  aggregation: {verify: Standard}
  checkpoint: {uri: s3://models/claims-triage/, everySteps: 40, keep: 3}
  storage: {endpoint: "https://minio.clinic:9000", region: eu-1, secretName: s3-keys}
  cluster:
    workers: 8
    image: registry.example/tensafe-trainer:0.1
    rayVersion: "2.60.0"
    imagePullPolicy: IfNotPresent
    imagePullSecrets: [{name: pull}]
    worker: {gpus: 1, gpuResource: nvidia.com/gpu, cpus: "8", memory: 64Gi}
    head: {cpus: "2", memory: 8Gi}
    serviceAccountName: trainer
    queueName: gpu-queue
    priorityClassName: ""
    runtimeClassName: ""
    schedulerName: ""
    nodeSelector: {zone: a}
    tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
    podLabels: {a: b}
    podAnnotations: {c: d}
    securityContext: {runAsUser: 1000, fsGroup: 1000}
    env: [{name: A, value: "1"}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    envFrom: [{configMapRef: {name: c}}]
    volumes: [{name: models, mountPath: /models, pvc: models, readOnly: true}]
  retry: {maxAttempts: 3, maxRestarts: 5}
  observability: {privateMetrics: Hidden}
  activeDeadlineSeconds: 86400
  childrenTTLSeconds: 3600
  suspend: false
status:
  observedGeneration: 1
  phase: Running
  conditions: [{type: Ready, status: "False", reason: WorkerLost, message: "A worker died.",
                lastTransitionTime: "2026-01-31T12:00:00Z"}]
  workers: {desired: 8, ready: 8}
  resolved: {modelCommit: abc, image: a, rayVersion: "2.60.0", datasetDigest: d, chatTemplateDigest: e}
  attempts: [{number: 1, rayJobName: claims-triage-a1, rayClusterName: c, startTime: "2026-01-31T12:00:00Z",
              endTime: "2026-01-31T13:00:00Z", reason: WorkerLost, exitCode: 1, node: node-1, restarts: 1, message: m}]
  privacy: {epsilonClaimed: "7.666", epsilonSpent: "4.929", targetEpsilon: "8", delta: "1e-6", unit: Example,
            adjacency: AddOrRemoveOne, noiseMultiplier: "0.775191", sampleRate: "0.0128", stepsCharged: 620,
            stepsRecharged: 0, stepsPlanned: 2000, accountant: RDP}
  progress: {step: 612, totalSteps: 2000, percent: 30, stepsPerSecond: "1.9",
             estimatedCompletionTime: "2026-01-31T13:00:00Z", lastUpdateTime: "2026-01-31T12:00:00Z"}
  evaluations: [{step: 600, loss: "1.91", accuracy: "0.9"}]
  checkpoints: [{uri: "s3://models/a/600", step: 600, epsilon: "4.878", digest: "sha256:ab", signed: false,
                 time: "2026-01-31T12:00:00Z"}]
  finalModel: {uri: "s3://models/a/2000", digest: "sha256:ab", statementURI: "s3://models/a/statement.json",
               statementDigest: "sha256:cd"}
  ledgerName: claims-triage-3f2a91c0
  ledgerUID: 3f2a91c0
"""


def problems_of(manifest: str | dict[str, Any], *overrides: str) -> list[str]:
    """The problems of a manifest, one line for each."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    with pytest.raises(ManifestError) as refusal:
        load_manifest(text, overrides)
    assert str(refusal.value).splitlines() == [str(problem) for problem in refusal.value.problems]
    return [str(problem) for problem in refusal.value.problems]


def test_the_shortest_manifest_has_the_documented_defaults() -> None:
    spec = load_manifest(SHORTEST).spec
    assert (spec.training.epochs, spec.training.steps, spec.training.learning_rate) == (None, None, None)
    assert (spec.lora.rank, spec.lora.alpha, spec.lora.target_modules) == (16, None, ())
    assert (spec.privacy.accountant, spec.privacy.target_delta, spec.privacy.max_grad_norm) == (None, None, "1.0")
    assert (spec.cluster.worker.gpus, spec.cluster.worker.cpus) == (0, "1")
    assert spec.evaluation is None
    assert spec.children_ttl_seconds == 3600


def test_every_field_can_be_read_and_written() -> None:
    job = load_manifest(WHOLE)
    assert load_manifest(dump_manifest(job)) == job
    assert load_manifest(dump_manifest(job, "json")) == job
    assert job.status is not None
    assert job.status.final_model is not None
    assert job.status.final_model.statement_uri == "s3://models/a/statement.json"
    written = yaml.safe_load(dump_manifest(job))
    given = yaml.safe_load(WHOLE)
    del given["spec"]["lora"]["modulesToSave"]
    for empty in ("priorityClassName", "runtimeClassName", "schedulerName"):
        del given["spec"]["cluster"][empty]
    given["spec"]["cluster"]["tolerations"][0] = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    given["spec"]["cluster"]["env"][0] = {"name": "A", "value": "1"}
    assert written == given


def test_a_job_is_written_without_nulls_and_empty_blocks() -> None:
    text = dump_manifest(load_manifest(SHORTEST))
    assert not re.search(r"null|\{\}|\[\]|: \"\"$", text, re.MULTILINE)
    assert 'weightDecay: "0.01"' in text
    assert 'targetEpsilon: "8"' in text


def test_all_errors_are_reported_at_once() -> None:
    manifest = """
apiVersion: tensafe.io/v1alpha1
kind: TenSafeTrainingJob
metadata: {name: Claims}
spec:
  model: {name: m, trustRemoteCode: "yes"}
  dataset:
    uri: data.csv
    columns: {messages: m, text: t}
    unit: {kind: Example, atLeast: 5000}
  training: {step: 20, steps: x, epochs: "1", learningRate: 2e-4, expectedBatchSize: 6000}
  privacy: {targetDelta: "0.1"}
  checkpoint: {uri: out, keep: 2.5}
  cluster: {workers: 2, env: [{name: A}]}
"""
    assert problems_of(manifest) == [
        'metadata.name: "Claims" is not the name of a job: lower-case letters, digits and -, with a letter first and '
        "no - at the end",
        'spec.model.trustRemoteCode: must be true or false, not "yes"',
        'spec.training.steps: must be a whole number without quotes, not "x"',
        'spec.training.learningRate: is a number without quotes: write "2e-4"',
        "spec.training.step: unknown field: did you mean steps?",
        "spec.privacy.targetEpsilon: is missing and has no default: write targetEpsilon (epsilon that the "
        "training must not exceed)",
        "spec.checkpoint.keep: must be a whole number without quotes, not 2.5",
        "spec.privacy.targetDelta: privacy.targetDelta must be below 1 / dataset.unit.atLeast: lower it, or "
        "remove it for the default of 1 / (10 x unit.atLeast)",
        "spec.training.expectedBatchSize: training.expectedBatchSize must be at most dataset.unit.atLeast, because it "
        "counts units: lower it",
        "spec.dataset.columns: dataset.columns must name exactly one shape of data: write prompt and completion, or "
        "messages, or text, or tokens and tags, or image and label",
        "spec.training: training must have at most one of epochs and steps: remove one of them",
        "spec.cluster.env[0]: env must have exactly one of value and valueFrom for each variable: write one of them",
    ]


@pytest.mark.parametrize(("changes", "problem"), INVALID_MANIFESTS, ids=str)
def test_invalid_value_is_reported_at_its_field(
    changes: dict[str, Any], problem: str | None, manifest_with: ManifestWith
) -> None:
    """Each invalid value is refused with one sentence that names its field."""
    with pytest.raises(ManifestError) as refusal:
        parse_job(manifest_with(changes))
    (only,) = refusal.value.problems
    if problem is None:
        (changed,) = changes
        assert only.path.startswith(changed)
        assert ": write" in only.message or "unknown field" in only.message or "is not " in only.message
    else:
        assert str(only) == problem


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("8.10", 'is a number without quotes: write "8.10"'),
        ("1e-5", 'is a number without quotes: write "1e-5"'),
        ("0.0000010", 'is a number without quotes: write "0.0000010"'),
        ("8E0", 'is a number without quotes: write "8E0"'),
        ("!!float 8", 'is a number without quotes: write "8"'),
        ("1_000", '1_000 is read as the number 1000: write "1000"'),
        ("010", '010 is read as the number 8: write "8"'),
        ("0o17", '0o17 is read as the number 15: write "15"'),
        (".5", '.5 is read as the number 0.5: write "0.5"'),
        ("+8", '+8 is read as the number 8: write "8"'),
        ("-8", 'is a number without quotes: write a decimal number such as "8", "0.05" or "2e-4", in quotes'),
        (".inf", '.inf is not a decimal number such as "8", "0.05" or "2e-4"'),
        ("12:30", '"12:30" is not a decimal number such as "8", "0.05" or "2e-4"'),
        ("off", 'is read as a boolean: write a decimal number such as "8", "0.05" or "2e-4", in quotes'),
    ],
)
def test_decimal_without_quotes_is_quoted_as_it_is_written(written: str, advice: str) -> None:
    lines = problems_of(SHORTEST.replace('targetEpsilon: "8"', f"targetEpsilon: {written}"))
    assert lines == [f"spec.privacy.targetEpsilon: {advice}"]


@pytest.mark.parametrize("written", ["0.10", "1", "1_000", "010", "1e3", "0x1F", ".5", ".inf"])
def test_name_that_is_read_as_a_number_is_quoted_as_it_is_written(written: str) -> None:
    lines = problems_of(SHORTEST.replace("name: Qwen/Qwen3-0.6B", f"name: {written}"))
    assert lines == [f'spec.model.name: is a number without quotes: write "{written}"']


@pytest.mark.parametrize(
    ("written", "what"), [("no", "a boolean"), ("Yes", "a boolean"), ("y", "a boolean"), ("~", "no value")]
)
def test_name_in_a_list_that_is_read_as_another_type_is_quoted_as_it_is_written(written: str, what: str) -> None:
    lines = problems_of(SHORTEST + f"  lora: {{targetModules: [q_proj, {written}]}}\n")
    assert lines == [f'spec.lora.targetModules[1]: is read as {what}: write "{written}"']


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("training: {steps: 1e3}", "training.steps: must be a whole number without quotes, not 1e3"),
        ("training: {steps: 0x0}", "training.steps: must be at least 1, not 0x0"),
        ("training: {<<: {steps: 2.50}}", "training.steps: must be a whole number without quotes, not 2.50"),
        ("suspend: 0x1", "suspend: must be true or false, not 0x1"),
        (
            "aggregation: {verify: off}",
            "aggregation.verify: off is none of Disabled, Standard, Strict: choose one of them",
        ),
    ],
)
def test_value_of_another_type_is_shown_as_it_is_written(line: str, problem: str) -> None:
    assert problems_of(f"{SHORTEST}  {line}\n") == [f"spec.{problem}"]


def test_value_that_a_change_replaced_is_not_shown() -> None:
    text = f"{SHORTEST}  training: {{steps: 2_0}}\n"
    assert problems_of(text, "spec.training.steps=0") == ["spec.training.steps: must be at least 1, not 0"]


def test_null_means_absent(manifest_with: ManifestWith) -> None:
    manifest = manifest_with({})
    manifest["spec"]["evaluation"] = None
    manifest["spec"]["lora"] = None
    assert parse_job(manifest) == parse_job(manifest_with({}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [\n", "manifest: is not YAML: line 2, column 1: expected the node content, but found '<stream end>'"),
        ("a: 1\n---\nb: 2\n", "manifest: contains 2 documents: give exactly one, the document of the job"),
        ("# nothing\n", "manifest: contains no document: give exactly one, the document of the job"),
        ("- a\n- b\n", "manifest: is not a mapping: write apiVersion, kind, metadata and spec"),
    ],
)
def test_text_that_is_not_a_manifest_is_refused(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_text_that_cannot_be_written_again_is_refused() -> None:
    assert problems_of('spec: {privacy: {targetEpsilon: "\\ud800"}}\n') == [
        "manifest: contains characters that UTF-8 cannot encode: give the YAML file of a job"
    ]
    assert problems_of("a: &a [*a]\n") == ["manifest: is not YAML: line 1, column 8: it refers to itself"]


def test_duplicate_key_is_reported_with_other_problems() -> None:
    lines = problems_of(SHORTEST + "  suspend: false\n  suspend: maybe\n")
    assert lines == [
        'manifest: line 15: the key "suspend" is already in line 14: keep one of them',
        'spec.suspend: must be true or false, not "maybe"',
    ]


def test_duplicate_key_alone_is_an_error() -> None:
    assert len(problems_of(SHORTEST + "  suspend: false\n  suspend: false\n")) == 1


def test_a_manifest_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SHORTEST)
    assert load_manifest(path) == load_manifest(str(path)) == load_manifest(SHORTEST)


def test_unreadable_file_is_reported_with_its_path(tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "none.yaml", tmp_path, tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, reason in (
        (missing, "no such file or directory"),
        (folder, "is a directory"),
        (binary, "not text in UTF-8"),
    ):
        with pytest.raises(ManifestError) as refusal:
            load_manifest(path)
        (problem,) = refusal.value.problems
        assert problem.path == str(path)
        assert reason in problem.message


def test_same_problem_is_reported_once() -> None:
    error = ManifestError([Problem("a", "b"), Problem("a", "b")])
    assert str(error) == "a: b"


def test_assignment_to_a_status_is_validated() -> None:
    status = Status()
    status.phase = "Running"
    with pytest.raises(ValueError, match="decimal"):
        status.privacy.epsilon_spent = "lots"


def test_only_the_first_of_very_many_problems_are_reported_and_quickly() -> None:
    manifest = yaml.safe_load(SHORTEST)
    manifest["spec"]["cluster"] |= {f"wrker{number}": 1 for number in range(64 * 1024 // 10)}
    manifest["spec"]["training"] = {"steps": 1, "epochs": "1"}
    began = time.process_time()
    with pytest.raises(ManifestError) as refusal:
        parse_job(manifest)
    assert time.process_time() - began < 0.5
    problems = str(refusal.value).splitlines()
    assert problems[0] == "spec.cluster.wrker0: unknown field: did you mean worker?"
    assert problems[-2].startswith("spec.training: training must have at most one of epochs and steps")
    assert problems[-1] == "and 6503 more"
    assert len(problems) == 52


def test_string_in_place_of_a_mapping_is_shown_in_a_mapping() -> None:
    with pytest.raises(ManifestError, match=r"spec\.model: must be a mapping.*: write \{name: Qwen/Qwen3-0\.6B\}"):
        parse_job(changed(MINIMAL, {"spec.model": "Qwen/Qwen3-0.6B"}))


@pytest.mark.parametrize("value", [10**400, -(10**400), "\ud800"], ids=["large", "small", "half-character"])
def test_value_that_no_float_or_encoding_can_hold_is_refused_with_its_field(value: object) -> None:
    """The API server accepts them in the annotation of a client-side apply, which the operator reads."""
    with pytest.raises(ManifestError, match=r"spec\.privacy\.targetEpsilon: .*a decimal number"):
        parse_job(changed(MINIMAL, {"spec.privacy.targetEpsilon": value}))


def test_size_without_a_unit_is_refused_with_an_example() -> None:
    with pytest.raises(ManifestError, match="is a number without quotes: write a size such as"):
        parse_job(changed(MINIMAL, {"spec.cluster.worker": {"memory": 64}}))


@pytest.mark.parametrize(
    ("value", "fix"), [("INT4", "choose one of them"), ("NF8", "choose one of them"), ("int8", "did you mean INT8?")]
)
def test_value_that_is_no_slip_gets_the_list(value: str, fix: str) -> None:
    manifest = yaml.safe_load(SHORTEST)
    manifest["spec"]["model"]["quantization"] = value
    with pytest.raises(ManifestError) as refusal:
        parse_job(manifest)
    assert f'spec.model.quantization: "{value}" is none of NF4, INT8: {fix}' in str(refusal.value)
