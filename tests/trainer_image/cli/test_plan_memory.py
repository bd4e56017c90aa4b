"""`tensafe plan`: the memory of a worker, whether it fits, and what to change if not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

from tensorguard.cli import plan_memory
from tensorguard.cli.arguments import memory_size
from tensorguard.cli.job_loading import load_job
from tensorguard.cli.main import main
from tensorguard.cli.plan_memory import PROCESS, WorkerMemory, size_text, worker_memory
from tests.support.trainer.rank_harness import make_tokenizer

pytestmark = pytest.mark.slow

Write = Callable[..., str]
FEW_STEPS: dict[str, Any] = {"privacy__accountant": "RDP", "training": {"steps": 40, "expectedBatchSize": 256}}
SIZE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}


@pytest.fixture
def llama(tmp_path: Path) -> dict[str, Any]:
    """The changes of a manifest for a Llama of which only the config and the tokenizer exist, beside the manifest."""
    folder = tmp_path / "llama"
    folder.mkdir()
    make_tokenizer(folder)
    LlamaConfig(vocab_size=32_000, max_position_embeddings=512, **SIZE).save_pretrained(folder)
    return {
        **FEW_STEPS,
        "model": {"name": "./llama", "task": "CausalLM"},
        "dataset": {
            "uri": "data/train.jsonl",
            "columns": {"text": "note"},
            "unit": {"kind": "Example", "atLeast": 6000},
        },
        "cluster": {"workers": 2, "worker": {"gpus": 1}},
    }


def test_parts_and_total_are_shown_for_a_cpu(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", write_manifest(**llama, cluster__worker__gpus=0)]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    section = shown.out[shown.out.index("Memory of a worker (fp32, 8 records at once)") :]
    for part in ("base model", "adapter", "gradients", "sums", "a pass", "clipping", "update", "peak", "process"):
        assert f"\n{part} " in section
    assert section.rstrip().endswith("Fits in the worker's memory of 8 GiB.")
    assert "whole layers" not in section


def test_figures_are_in_the_json(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", write_manifest(**llama, cluster__worker__gpus=0), "-o", "json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["device"], memory["precision"], memory["microBatchSize"]) == ("cpu", "fp32", 8)
    assert memory["weights"] == pytest.approx(4 * (2 * 32_000 * 256 + 4 * (4 * 256 + 3 * 512) * 256), rel=0.001)
    always = sum(memory[part] for part in ("weights", "adapter", "rows", "sum"))
    assert memory["peak"] == always + max(memory["passes"], memory["clipping"], memory["update"])
    assert memory["needed"] == memory["peak"] + PROCESS
    assert (memory["available"], memory["fits"], memory["host"]) == (8 << 30, True, None)


def test_frozen_layers_and_their_room_on_the_disk_are_shown(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    llama["cluster"]["worker"] = {"ephemeralStorage": "1Gi"}
    llama["training"] = {"steps": 60, "expectedBatchSize": 256, "maxLength": 64}
    path = write_manifest(**llama, lora={"layers": [3]})
    assert main(["plan", path, "-o", "json"]) == 0
    shown = capsys.readouterr()
    memory = json.loads(shown.out)["memory"]
    assert (memory["leftOut"], memory["states"]) == ("3 of 4 layers", 3000 * 64 * 256 * 4)  # fp32, half of the units
    assert not shown.err
    assert main(["plan", path, "--set", "spec.cluster.worker.ephemeralStorage=300Mi"]) == 0
    shown = capsys.readouterr()
    assert "spec.cluster.worker.ephemeralStorage: 300Mi" in shown.err
    assert "3 of 4 layers" in shown.out
    for whole in ("spec.lora.layers=[0]", "spec.training.frozenPrefix=Off", "spec.training.steps=40"):
        assert main(["plan", path, "--set", whole, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["memory"]["leftOut"] is None


def test_too_little_memory_of_a_worker_is_a_warning(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    llama["cluster"] = {"workers": 2, "worker": {"memory": "512Mi"}}
    assert main(["plan", write_manifest(**llama)]) == 0
    shown = capsys.readouterr()
    assert "Does not fit in the worker's memory of 512 MiB." in shown.out
    assert re.fullmatch(
        r"warning: spec.cluster.worker.memory: 512Mi is less than the .* GiB that a worker needs: "
        r"to make it fit, add this:\n  --set spec.cluster.worker.memory=2Gi\n",
        shown.err,
    )


def test_gpu_is_counted_with_what_cuda_takes(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", write_manifest(**llama)]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert "Memory of a GPU (bf16, 8 records at once)" in shown.out
    assert re.search(r"\nCUDA context +1.24 GiB +as on an H200\n", shown.out)
    assert shown.out.rstrip().endswith("Fits on GPUs of 24 GB, 40 GB, 48 GB, 80 GB.")


def test_gpu_that_is_too_small_is_a_failure(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", write_manifest(**llama), "--gpu-memory", "512Mi"]) == 1
    shown = capsys.readouterr()
    assert shown.out.rstrip().endswith("Does not fit on a GPU with 512 MiB.")
    assert shown.err.startswith("warning: --gpu-memory: 512 MiB is less than the ")
    assert shown.err.endswith("that a worker needs: choose a smaller model or a GPU with more memory\n")


RECOMPUTE = "spec.training.gradientCheckpointing=true"


def records(number: int) -> str:
    return f"spec.training.microBatchSize={number}"


def gpus(number: int) -> str:
    return f"spec.cluster.worker.gpus={number}"


def scheme(name: str) -> str:
    return f"spec.model.quantization={name}"


def test_gpu_that_is_a_little_too_small_is_a_failure_with_changes_that_make_it_fit(
    write_manifest: Write, llama: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama["training"] = {**FEW_STEPS["training"], "microBatchSize": 2}
    path = write_manifest(**llama)
    needed = worker_memory(load_job(path, []), tmp_path, gpu_memory=1 << 50).needed
    command = ["plan", path, "--gpu-memory", f"{(needed >> 20) - 8}Mi"]
    assert main(command) == 1
    assert capsys.readouterr().err.endswith(
        f": to make it fit, add one of these:\n  --set {records(1)}\n  --set {RECOMPUTE}\n"
    )
    assert [main([*command, "--set", change]) for change in (records(1), RECOMPUTE)] == [0, 0]


@pytest.fixture
def large_llama(llama: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The same with most of its memory in the weights."""
    size = {"hidden_size": 3072, "intermediate_size": 7168, "num_hidden_layers": 6, "num_attention_heads": 24}
    LlamaConfig(vocab_size=4000, max_position_embeddings=512, **size).save_pretrained(tmp_path / "llama")
    return {
        **llama,
        "training": {**FEW_STEPS["training"], "microBatchSize": 8, "maxLength": 80},
        "cluster": {"workers": 2, "worker": {"gpus": 1, "memory": "4Gi"}},
    }


@pytest.mark.parametrize(
    ("mebibytes", "expected"),
    [
        (2900, [[records(2)], [RECOMPUTE]]),
        (2630, [[RECOMPUTE, scheme("INT8")], [RECOMPUTE, gpus(2), records(4)]]),
        (
            2050,
            [[RECOMPUTE, scheme("NF4")], [RECOMPUTE, gpus(8), records(2), "spec.cluster.worker.memory=9Gi"]],
        ),
        (1500, []),
    ],
)
def test_first_change_of_each_kind_makes_a_worker_fit(
    write_manifest: Write, large_llama: dict[str, Any], tmp_path: Path, mebibytes: int, expected: list[list[str]]
) -> None:
    def memory(*changes: str) -> WorkerMemory:
        return worker_memory(load_job(path, changes), tmp_path, gpu_memory=mebibytes << 20)

    path = write_manifest(**large_llama)
    found = memory()
    assert found.fits is False
    assert [list(remedy) for remedy in found.remedies] == expected
    assert found.figures()["remedies"] == found.remedies
    for remedy in found.remedies:
        changed = memory(*remedy)
        assert changed.fits
        assert not [*changed.warnings()]


def test_changes_are_shown_as_the_command_takes_them(
    write_manifest: Write, large_llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", write_manifest(**large_llama), "--gpu-memory", "2630Mi"]) == 1
    assert capsys.readouterr().err.endswith(
        " GiB that a worker needs: to make it fit, add one of these:\n"
        f"  --set {RECOMPUTE} --set spec.model.quantization=INT8\n"
        f"  --set {RECOMPUTE} --set spec.cluster.worker.gpus=2 --set {records(4)}\n"
        "Quantisation takes time and changes results a little: docs/choosing-hyperparameters.md\n"
    )


def test_gpu_of_unknown_size_is_compared_with_the_largest_common_one(
    write_manifest: Write,
    large_llama: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_memory, "GPU_SIZES", (1, 3))
    path = write_manifest(**large_llama)
    assert main(["plan", path, "--set", records(4)]) == 0
    assert capsys.readouterr().out.endswith(
        "\nDoes not fit on a GPU of 3 GB: to make it fit, add one of these:\n"
        f"  --set {records(2)}\n  --set {RECOMPUTE}\n"
    )
    assert main(["plan", path, "--set", RECOMPUTE, "--set", records(4)]) == 0
    assert capsys.readouterr().out.endswith("\nFits on GPUs of 3 GB.\n")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param((scheme("INT8"),), [[scheme("NF4")], [gpus(2)]], id="INT8 already"),
        pytest.param((scheme("NF4"),), [[gpus(2)]], id="NF4 already"),
        pytest.param(
            ("spec.model.sharding=Replicated", gpus(2)),
            [[scheme("INT8")], [gpus(2), "spec.model.sharding=Worker"]],
            id="GPUs that share nothing",
        ),
        pytest.param(("spec.cluster.workers=200",), [[scheme("INT8")]], id="too many GPUs"),
    ],
)
def test_changes_start_from_the_manifest(
    write_manifest: Write,
    large_llama: dict[str, Any],
    tmp_path: Path,
    changes: tuple[str, ...],
    expected: list[list[str]],
) -> None:
    own = [RECOMPUTE, records(1), "spec.cluster.worker.memory=32Gi", *changes]
    job = load_job(write_manifest(**large_llama), own)
    limit = worker_memory(job, tmp_path, gpu_memory=1 << 50).needed - (8 << 20)
    found = worker_memory(job, tmp_path, gpu_memory=limit)
    assert [list(remedy) for remedy in found.remedies] == expected


def test_change_that_the_model_refuses_is_not_proposed(
    write_manifest: Write, large_llama: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GPT2Config(vocab_size=4000, n_positions=512, n_embd=1536, n_layer=8).save_pretrained(tmp_path / "llama")
    monkeypatch.setattr(GPT2LMHeadModel, "supports_gradient_checkpointing", False)
    job = load_job(write_manifest(**large_llama), [records(1)])
    limit = worker_memory(job, tmp_path, gpu_memory=1 << 50).needed - (8 << 20)
    assert worker_memory(job, tmp_path, gpu_memory=limit).remedies == ((gpus(2),),)


def test_memory_of_the_host_is_checked_beside_the_gpu(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    llama["cluster"] = {"workers": 2, "worker": {"gpus": 1, "memory": "512Mi"}}
    assert main(["plan", write_manifest(**llama)]) == 0
    error = capsys.readouterr().err
    assert re.search(
        r"512Mi is less than the 1,00\d MiB that a worker needs beside its GPUs, .*: raise it to 1Gi\n", error
    )


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_table_is_shown_without_the_files_of_the_model(
    write_manifest: Write, llama: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    (tmp_path / "llama" / missing).unlink()
    path = write_manifest(**llama)
    assert main(["plan", path]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("the memory of a worker is not estimated: spec.model.name: ")
    assert shown.err.count("\n") == 1
    assert "as in the manifest" in shown.out and "Memory of a" not in shown.out
    assert main(["plan", path, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] is None


def test_gpu_memory_without_an_estimate_is_a_failure(
    write_manifest: Write, llama: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "llama")
    assert main(["plan", write_manifest(**llama), "--gpu-memory", "80Gi"]) == 1


def test_size_of_a_gpu_may_be_written_as_on_its_box() -> None:
    assert memory_size("80GB") == memory_size("80G") == 80 * 10**9
    assert memory_size("24GiB") == memory_size("24Gi") == 24 << 30


@pytest.mark.parametrize("size", ["24 GB", "24", "0", "0G", "much"])
def test_size_of_a_gpu_must_be_a_quantity(write_manifest: Write, capsys: pytest.CaptureFixture[str], size: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", write_manifest(), "--gpu-memory", size])
    assert ended.value.code == 2
    assert "--gpu-memory" in capsys.readouterr().err


def test_sizes_are_readable() -> None:
    assert [size_text(size) for size in (1 << 19, 960 << 20, 1 << 30, 24 << 30, 3 << 42)] == [
        "0.5 MiB",
        "960 MiB",
        "1 GiB",
        "24 GiB",
        "12,288 GiB",
    ]
