"""A model without its weights, and each worker's part of them: the same numbers as those of the whole model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import BertConfig, BertForSequenceClassification, BertModel, LlamaConfig, LlamaForCausalLM

from tensafe_api.resources.model import Quantization
from tensorguard.models.deferred_model import DeferredModel, load_deferred
from tensorguard.models.load import BaseModel, load_model
from tensorguard.models.lora import adapter_parameters, attach_lora
from tensorguard.models.quantized import QuantizedLinear
from tensorguard.models.sharded_base import BaseSharding
from tensorguard.models.source import ModelSource, resolve_model
from tensorguard.models.tasks import Task, task_named
from tensorguard.models.weight_files import WeightFiles

CPU = torch.device("cpu")
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CAUSAL, CLASSES = task_named("CausalLM"), task_named("SequenceClassification", labels=3)


def llama(folder: Path, *, shard_size: str = "50GB", **settings: object) -> ModelSource:
    config = LlamaConfig(**SMALL, num_key_value_heads=2, dtype="float32", **settings)  # type: ignore[arg-type]
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard_size)
    return resolve_model(str(folder))


def bert(folder: Path) -> ModelSource:
    BertForSequenceClassification(BertConfig(**SMALL, num_labels=3)).save_pretrained(folder)  # type: ignore[call-arg]
    return resolve_model(str(folder))


def deferred(source: ModelSource, task: Task, precision: str = "fp32") -> DeferredModel | None:
    return load_deferred(source, task, modules_to_save=(), precision=precision, pad_token_id=0)


def adapted(base: BaseModel) -> PeftModel:
    return attach_lora(base, rank=2, alpha=4, dropout=0.1, init_seed=7)


@contextlib.contextmanager
def rank_of(rank: int, size: int) -> Iterator[BaseSharding]:
    """This process as one rank of a group whose other ranks do not exist. Enough to place weights, not to train."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield BaseSharding.of(size, CPU)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(
    ("make", "task", "precision"),
    [
        pytest.param(llama, CAUSAL, "bf16", id="llama"),
        pytest.param(lambda path: llama(path, tie_word_embeddings=True), CAUSAL, "fp32", id="tied"),
        pytest.param(lambda path: llama(path, shard_size="10KB"), CAUSAL, "fp32", id="several-files"),
        pytest.param(bert, CLASSES, "fp32", id="bert"),
    ],
)
def test_worker_reads_its_rows_of_each_weight(tmp_path: Path, make, task: Task, precision: str, rank: int) -> None:
    source = make(tmp_path)
    found = deferred(source, task, precision)
    assert found is not None
    reference = adapted(load_model(source, task, init_seed=7, pad_token_id=0, precision=precision))
    whole = dict(reference.named_parameters(remove_duplicate=False))
    buffers = dict(reference.named_buffers())
    model = adapted(found.base)
    with rank_of(rank, 3) as sharding:
        sharding.shard(model, CPU, found)
        parts = dict(model.named_parameters(remove_duplicate=False))
        assert parts.keys() == whole.keys()
        for name, part in parts.items():
            expected = whole[name].detach()
            if isinstance(part, DTensor):
                rows = -(-len(expected) // 3)
                part, expected = part.to_local(), expected[rank * rows : (rank + 1) * rows]
            assert torch.equal(part, expected), name
            assert part.dtype == expected.dtype
        assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
        kept = adapter_parameters(model)
        assert all(isinstance(part, DTensor) is (part not in kept) for part in parts.values())


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(3))
def test_loaded_model_is_cut_into_the_same_rows(tmp_path: Path, rank: int) -> None:
    source = bert(tmp_path)
    found = deferred(source, CLASSES)
    assert found is not None
    read, cut = adapted(found.base), adapted(load_model(source, CLASSES, init_seed=7, pad_token_id=0))
    with rank_of(rank, 3) as sharding:
        sharding.shard(read, CPU, found)
        sharding.shard(cut, CPU)
        parts = dict(cut.named_parameters())
        for name, part in read.named_parameters():
            own, other = (p.to_local() if isinstance(p, DTensor) else p for p in (part, parts[name]))
            assert torch.equal(own, other), name


def test_weights_that_are_read_later_have_no_memory(tmp_path: Path) -> None:
    found = deferred(llama(tmp_path), CAUSAL)
    assert found is not None
    assert sum(parameter.untyped_storage().nbytes() for parameter in found.base.model.parameters()) < 500
    assert sum(parameter.nbytes for parameter in found.base.model.parameters()) > 20_000


def test_worker_holds_its_share_of_the_base(tmp_path: Path) -> None:
    source = llama(tmp_path)
    found = deferred(source, CAUSAL)
    assert found is not None
    model = adapted(found.base)
    with rank_of(1, 4) as sharding:
        sharding.shard(model, CPU, found)
        whole = sum(parameter.nbytes for parameter in model.parameters() if isinstance(parameter, DTensor))
        own = sum(parameter.to_local().nbytes for parameter in model.parameters() if isinstance(parameter, DTensor))
    assert whole / 4 <= own < whole / 3.8


@pytest.mark.parametrize("scheme", ["NF4", "INT8"])
def test_worker_holds_its_share_of_codes_and_scales(tmp_path: Path, scheme: Quantization) -> None:
    model = adapted(load_model(llama(tmp_path), CAUSAL, init_seed=7, pad_token_id=0, quantization=scheme))
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    whole = [tuple(each.clone() for each in (layer.codes, layer.scales)) for layer in layers]
    with rank_of(1, 2) as sharding:
        sharding.shard(model, CPU)
        for layer, tensors in zip(layers, whole, strict=True):
            for part, before in zip((layer.codes, layer.scales), tensors, strict=True):
                assert isinstance(part, DTensor)
                assert torch.equal(part.to_local(), before[len(before) // 2 :])


def rename(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.other"] = weights.pop("model.layers.0.self_attn.q_proj.weight")
    save_file(weights, folder / "model.safetensors")


def test_files_without_the_name_of_a_weight_are_read_at_once(tmp_path: Path) -> None:
    source = llama(tmp_path)
    rename(tmp_path)
    assert deferred(source, CAUSAL) is None


def test_model_whose_head_is_new_is_read_at_once(tmp_path: Path) -> None:
    BertModel(BertConfig(**SMALL)).save_pretrained(tmp_path)
    assert deferred(resolve_model(str(tmp_path)), CLASSES) is None


def test_model_without_safetensors_is_read_at_once(tmp_path: Path) -> None:
    source = llama(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert deferred(source, CAUSAL) is None


UP = "model.layers.1.mlp.up_proj.weight"
INDEX = "model.safetensors.index.json"


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def single_file_beside_an_index(folder: Path) -> None:
    files = WeightFiles.of(resolve_model(str(folder)))
    assert files is not None
    weights = {name: files.read(name) + 1 for name in files.files}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def another_file(folder: Path) -> None:
    weights = {UP: torch.ones(32, 16)}
    save_file(weights, folder / "model-00009-of-00009.safetensors", metadata={"format": "pt"})
    change_index(folder, lambda names: names.update({UP: "model-00009-of-00009.safetensors"}))


def both_names(folder: Path) -> None:
    change_index(folder, lambda names: names.update({UP.removeprefix("model."): "other.safetensors"}))
    save_file({UP.removeprefix("model."): torch.ones(32, 16)}, folder / "other.safetensors", metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        single_file_beside_an_index,
        another_file,
        both_names,
        lambda folder: change_index(folder, lambda names: names.update({UP: names["lm_head.weight"]})),
        lambda folder: change_index(folder, lambda names: names.pop(UP)),
        lambda folder: change_index(folder, lambda names: names.update({"extra": "gone.safetensors"})),
        lambda folder: change_index(folder, lambda names: names.update({UP: f"../{folder.name}/{names[UP]}"})),
    ],
    ids=["single-file-too", "another-file", "both-names", "wrong-file", "no-file", "missing-file", "outside"],
)
def test_files_count_as_they_do_for_transformers(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """A worker with a part of the base must train on the same weights as one with a whole base, or leave it whole."""
    source = llama(tmp_path, shard_size="10KB")
    before = source.identity()
    change(tmp_path)
    assert source.identity() != before
    found = deferred(source, CAUSAL)
    if found is None:
        return
    whole = adapted(load_model(source, CAUSAL, init_seed=7, pad_token_id=0))
    model = adapted(found.base)
    with rank_of(0, 2) as sharding:
        sharding.shard(model, CPU, found)
        for name, part in model.named_parameters():
            expected = whole.get_parameter(name).detach()
            if isinstance(part, DTensor):
                part, expected = part.to_local(), expected[: -(-len(expected) // 2)]
            assert torch.equal(part, expected), name


def test_rows_of_a_tensor_are_read_by_themselves(tmp_path: Path) -> None:
    save_file({"a": torch.arange(12.0).reshape(4, 3), "scalar": torch.tensor(3.0)}, tmp_path / "model.safetensors")
    files = WeightFiles.of(ModelSource("x", str(tmp_path), None))
    assert files is not None
    assert files.shape("a") == (4, 3)
    assert files.read("a", 2, 3).tolist() == [[6.0, 7.0, 8.0]]
    assert files.read("a", 4, 4).shape == (0, 3)
    assert files.read("scalar").item() == 3.0
