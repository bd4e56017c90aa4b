"""`tensafe plan`: the memory of a worker, whether it fits, and what to change if not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from e2e.platform.trainer.rank_harness import make_tokenizer
from tensorguard.cli.arguments import memory_size
from tensorguard.cli.job_loading import load_job
from tensorguard.cli.main import main
from tensorguard.cli.plan_memory import PROCESS, WorkerMemory, size_text, worker_memory

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


def test_too_little_memory_of_a_worker_is_a_warning(
    write_manifest: Write, llama: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    llama["cluster"] = {"workers": 2, "worker": {"memory": "512Mi"}}
    assert main(["plan", write_manifest(**llama)]) == 0
    shown = capsys.readouterr()
    assert "Does not fit in the worker's memory of 512 MiB." in shown.out
    assert re.fullmatch(
        r"warning: spec.cluster.worker.memory: 512Mi is less than the .* GiB that a worker needs: raise it to 2Gi\n",
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


def test_proposed_changes_make_a_worker_fit(write_manifest: Write, llama: dict[str, Any], tmp_path: Path) -> None:
    def memory(*changes: str) -> WorkerMemory:
        job = load_job(write_manifest(**llama), [f"spec.training.{change}" for change in changes]).job
        return worker_memory(job, tmp_path, gpu_memory=1584 << 20)

    too_large = memory()
    assert too_large.fits is False
    lower, recompute = too_large.remedies
    number = int(lower.removeprefix("lower spec.training.microBatchSize to "))
    assert number in (1, 2, 4)
    assert memory(f"microBatchSize={number}").fits
    assert not memory(f"microBatchSize={2 * number}").fits
    assert recompute == "set spec.training.gradientCheckpointing to true"
    assert memory("gradientCheckpointing=true").fits


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
