"""The estimated memory of a worker: compared with what torch allocates in whole runs, and how it depends on the job."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from benchmarks import memory as resident
from tensorguard.models.memory import Device, MemoryEstimate, MemoryModel
from tensorguard.models.source import resolve_model
from tensorguard.training import setup as training_setup
from tensorguard.training.base_model import load_lora_model
from tests.support.trainer.image_jobs import IMAGE_MANIFEST, images
from tests.support.trainer.rank_harness import CAUSAL_MANIFEST, MANIFEST, Job, JobKind, make_tokenizer

LENGTH = 32
LLAMA_SIZE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}


def make_llama(directory: Path, **changes: Any) -> None:
    make_tokenizer(directory)
    settings = {"vocab_size": 2000, "max_position_embeddings": LENGTH, "num_key_value_heads": 2, **LLAMA_SIZE}
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(directory)


def make_gemma(directory: Path) -> None:
    """A model that caps its logits, so that they are computed as a whole."""
    make_tokenizer(directory)
    settings = {"vocab_size": 2000, "max_position_embeddings": LENGTH, "num_key_value_heads": 2, **LLAMA_SIZE}
    Gemma2ForCausalLM(Gemma2Config(head_dim=32, **settings)).save_pretrained(directory)


def make_gpt2(directory: Path) -> None:
    make_tokenizer(directory)
    size: dict[str, Any] = {"n_positions": LENGTH, "n_embd": 128, "n_layer": 3, "n_head": 4}
    GPT2LMHeadModel(GPT2Config(vocab_size=2000, bos_token_id=2, eos_token_id=3, **size)).save_pretrained(directory)


def make_bert(directory: Path) -> None:
    size = LLAMA_SIZE | {"vocab_size": make_tokenizer(directory), "num_labels": 2}
    BertForSequenceClassification(BertConfig(max_position_embeddings=LENGTH, **size)).save_pretrained(directory)


def make_vit(directory: Path) -> None:
    size = LLAMA_SIZE | {"num_labels": 3, "image_size": 48, "patch_size": 8}
    ViTForImageClassification(ViTConfig(**size)).save_pretrained(directory)
    ViTImageProcessorPil(size={"height": 48, "width": 48}).save_pretrained(directory)


def long_texts(count: int) -> list[dict[str, Any]]:
    return [{"text": "w1 " * LENGTH, "label": number % 2} for number in range(count)]


def long_completions(count: int) -> list[dict[str, Any]]:
    return [{"prompt": "w1", "completion": "w2 " * LENGTH} for _ in range(count)]


KINDS = {
    "llama": JobKind(CAUSAL_MANIFEST, make_llama, long_completions),
    "gemma": JobKind(CAUSAL_MANIFEST, make_gemma, long_completions),
    "gpt2": JobKind(CAUSAL_MANIFEST.replace("[q_proj, v_proj]", "[c_attn, c_fc]"), make_gpt2, long_completions),
    "bert": JobKind(MANIFEST, make_bert, long_texts),
    "vit": JobKind(IMAGE_MANIFEST, make_vit, images),
}


LOADED = "the model is loaded"


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    numbers = itertools.count()

    def make(kind: str, *overrides: str) -> Job:
        length = [] if kind == "vit" else [f"spec.training.maxLength={LENGTH}"]
        fixed = ["spec.cluster.workers=1", "spec.training.steps=1", *length]
        return Job.make(tmp_path / f"{next(numbers)}", *fixed, *overrides, kind=KINDS[kind])

    return make


def model_of(job: Job, device: Device = "cpu") -> MemoryModel:
    spec = job.job.spec
    return MemoryModel(spec, resolve_model(spec.model.name), device, spec.training.precision or "fp32")


def allocated(job: Job) -> int:
    """The largest number of bytes at a time that torch's allocator gives in a run, in addition to the loaded model."""

    def load(*args: Any, **kwargs: Any) -> Any:
        model = load_lora_model(*args, **kwargs)
        with record_function(LOADED):  # the clock of the profiler is not that of the process
            return model

    gc.collect()  # else models of earlier tests are freed while this one is measured
    with (
        mock.patch.object(training_setup, "load_lora_model", load),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
    ):
        job.train_alone()
    events = profiled.profiler.kineto_results.events()
    loaded = next(event.start_ns() for event in events if event.name() == LOADED)
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]" and event.start_ns() > loaded:
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "override"),
    [
        ("bert", "spec.training.microBatchSize=8"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("llama", "spec.training.gradientCheckpointing=false"),
                ("llama", "spec.training.gradientCheckpointing=true"),
                ("llama", "spec.training.precision=bf16"),
                ("llama", "spec.model.quantization=NF4"),
                ("gemma", "spec.training.microBatchSize=4"),
                ("gpt2", "spec.training.microBatchSize=3"),
                ("vit", "spec.training.microBatchSize=8"),
            )
        ),
    ],
)
def test_estimate_is_close_to_what_a_run_allocates(make_job: Callable[..., Job], kind: str, override: str) -> None:
    job = make_job(kind, override)
    estimate = model_of(job).estimate(job.job.spec.training.micro_batch_size)
    measured = allocated(job)
    assert job.ended().reason == "Completed"
    assert estimate.total - estimate.weights - 4 * estimate.dimension == pytest.approx(measured, rel=0.1)


@pytest.mark.slow
def test_larger_micro_batches_need_more(make_job: Callable[..., Job]) -> None:
    model = model_of(make_job("bert"))
    estimates = [model.estimate(size) for size in (1, 2, 8)]
    for fewer, more in itertools.pairwise(estimates):
        assert fewer.total < more.total
        assert fewer.passes < more.passes
    assert [each.rows for each in estimates] == [4 * size * each.dimension for size, each in zip((1, 2, 8), estimates)]


@pytest.mark.slow
def test_recomputed_layers_need_less(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job("llama")
    kept = model_of(job).estimate(8)
    training = job.job.spec.training.model_copy(update={"gradient_checkpointing": True})
    spec = job.job.spec.model_copy(update={"training": training})
    recomputed = MemoryModel(spec, resolve_model(spec.model.name), "cpu", "fp32").estimate(8)
    assert recomputed.passes < 0.7 * kept.passes
    assert recomputed.weights == kept.weights


@pytest.mark.slow
def test_gpus_that_share_a_base_hold_a_part_each(make_job: Callable[..., Job]) -> None:
    whole = model_of(make_job("llama")).estimate(2)
    quarter = model_of(make_job("llama", "spec.cluster.worker={gpus: 4, cpus: 4}")).estimate(2)
    assert quarter.weights == pytest.approx(whole.weights / 4, rel=0.01)
    assert whole.gathered_layers == 0
    assert quarter.gathered_layers > 2 * 2000 * 128 * 4, "the embeddings and the output layer stay whole in a pass"
    assert (quarter.adapter, quarter.rows, quarter.passes) == (whole.adapter, whole.rows, whole.passes)


@pytest.mark.slow
def test_quantised_weights_are_smaller(make_job: Callable[..., Job]) -> None:
    bf16 = "spec.training.precision=bf16"
    whole, nf4, int8 = (
        model_of(make_job("llama", bf16, *changes)).estimate(2).weights
        for changes in ((), ("spec.model.quantization=NF4",), ("spec.model.quantization=INT8",))
    )
    layers = 3 * (128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 256)
    assert nf4 == whole - 2 * layers + layers * (0.5 + 4 / 64)
    assert whole - 2 * layers + layers < int8 < whole - 0.9 * layers


@pytest.mark.slow
def test_host_needs_the_whole_weights_only_while_it_quantises_them(make_job: Callable[..., Job]) -> None:
    gpus = ("spec.training.precision=bf16", "spec.cluster.worker={gpus: 4, cpus: 4}")
    read, quantised = (
        model_of(make_job("llama", *gpus, *changes), "cuda").estimate(1)
        for changes in ((), ("spec.model.quantization=NF4",))
    )
    assert read.host == max(read.weights, 14 * 4 * read.dimension)
    assert quantised.host > 3.9 * read.weights


@pytest.mark.slow
def test_attention_on_a_gpu_keeps_no_scores(make_job: Callable[..., Job]) -> None:
    job = make_job("llama")
    cpu, gpu = (model_of(job, device).estimate(8).passes for device in ("cpu", "cuda"))
    assert gpu == pytest.approx(cpu, rel=0.1)


@pytest.mark.slow
def test_forty_layers_are_planned_in_seconds_without_their_memory(make_job: Callable[..., Job], tmp_path: Path) -> None:
    spec = make_job("llama", "spec.training.gradientCheckpointing=true", "spec.training.maxLength=1024").job.spec
    size = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}
    config = LlamaConfig(vocab_size=32_000, max_position_embeddings=4096, **size)
    for file in Path(spec.model.name).glob("*.safetensors"):
        file.unlink()
    config.save_pretrained(spec.model.name)
    resident.reset_peak()
    before, started = resident.resident_mib(), time.process_time()
    estimate = MemoryModel(spec, resolve_model(spec.model.name), "cuda", "bf16").estimate(8)
    assert time.process_time() - started < 20
    assert resident.peak_mib() - before < 500
    assert estimate.weights == pytest.approx(2 * 13.016e9, rel=0.001)
    assert estimate.weights < estimate.total < 2 * estimate.weights


def test_peak_is_that_of_the_largest_phase() -> None:
    phases = {"passes": 7, "clipping": 5, "update": 3}
    always = {"weights": 100, "adapter": 10, "rows": 20, "sum": 30, "gathered_layers": 1}
    rest = {"host": 0, "micro_batch": 1, "dimension": 1}
    assert MemoryEstimate(**always, **phases, **rest).total == 160 + 8
    assert MemoryEstimate(**always, **phases | {"clipping": 9}, **rest).total == 160 + 9
    assert MemoryEstimate(**always, **phases | {"update": 10}, **rest).total == 160 + 10


@pytest.mark.slow
def test_model_is_not_changed_by_an_estimate(make_job: Callable[..., Job]) -> None:
    model = model_of(make_job("vit"))
    assert model.estimate(4) == model.estimate(4)
    assert not any(isinstance(module, torch.nn.Dropout) and module.p for module in model._model.modules())
