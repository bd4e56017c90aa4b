"""Plain peft loads a saved adapter, and the trainer restores it exactly."""

import json

import pytest
import torch
from peft import AutoPeftModelForSequenceClassification, PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tensorguard.models.adapter import AdapterMismatchError, adapter_config, adapter_state, load_adapter_state
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.load import load_model
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_named
from tensorguard.privacy.gradients import PerExampleGradients

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CLASSES = task_named("SequenceClassification", labels=3)
TEXT = task_named("CausalLM")
IDS = torch.arange(1, 13).reshape(2, 6)
INPUT = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}

BASES = {
    "bert": (lambda: BertModel(BertConfig(**SMALL)), CLASSES),
    "bert-without-pooler": (lambda: BertModel(BertConfig(**SMALL), add_pooling_layer=False), CLASSES),
    "distilbert": (
        lambda: DistilBertModel(DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)),
        CLASSES,
    ),
    "llama-classes": (lambda: LlamaForCausalLM(LlamaConfig(**SMALL)), CLASSES),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SMALL)), TEXT),
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)), TEXT),
}


@pytest.fixture
def make(tmp_path):
    """Makes a model with an adapter. Its base is saved in `tmp_path / "base"`. Returns its source and task too."""

    def made(kind="bert", seed=1, rank=2):
        maker, task = BASES[kind]
        if not (tmp_path / "base").exists():
            maker().save_pretrained(tmp_path / "base")
        source = resolve_model(str(tmp_path / "base"))
        base = load_model(source, task, init_seed=seed, pad_token_id=0)
        model = attach_lora(
            base, rank=rank, alpha=4, dropout=0.1, init_seed=seed, target_modules=["all-linear"], layers=[1]
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, parameter in trainable_parameters(model):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
        return model, source, task

    return made


def write(model, source, folder):
    folder.mkdir()
    save_file(adapter_state(model), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config(model, source)))
    return folder


@pytest.mark.parametrize("kind", BASES)
def test_plain_peft_loads_the_trained_model(make, tmp_path, kind):
    model, source, task = make(kind)
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(task))
    folder = write(model, source, tmp_path / "adapter")
    gradients.close()
    expected = model.eval()(**INPUT).logits
    torch.manual_seed(123)
    if task == CLASSES:
        plain = AutoModelForSequenceClassification.from_pretrained(source.location, num_labels=3)
    else:
        plain = AutoModelForCausalLM.from_pretrained(source.location)
    plain.config.pad_token_id = 0
    assert not torch.allclose(plain.eval()(**INPUT).logits, expected, atol=1e-3)
    loaded = PeftModel.from_pretrained(plain, folder).eval()
    torch.testing.assert_close(loaded(**INPUT).logits, expected, rtol=1e-5, atol=1e-6)


def test_auto_classes_of_peft_find_the_base_by_its_path(make, tmp_path):
    model, source, _ = make()
    folder = write(model, source, tmp_path / "adapter")
    loaded = AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=3).eval()
    torch.testing.assert_close(loaded(**INPUT).logits, model.eval()(**INPUT).logits, rtol=1e-5, atol=1e-6)


def test_files_hold_only_the_trained_numbers(make, tmp_path):
    model, source, _ = make()
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(CLASSES))
    folder = write(model, source, tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    assert sum(t.numel() for t in tensors.values()) == gradients.dimension
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    assert all(key.endswith(("lora_A.weight", "lora_B.weight")) or ".classifier." in key for key in tensors)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == source.name and config["inference_mode"] is True
    assert config["modules_to_save"] == ["classifier"]


def test_checkpoint_is_loaded_exactly_into_the_same_parameters(make):
    model, _, _ = make(seed=1)
    other, _, _ = make(seed=2)
    parameters = trainable_parameters(other)
    places = [parameter.data_ptr() for _, parameter in parameters]
    load_adapter_state(other, adapter_state(model))
    assert [parameter.data_ptr() for _, parameter in trainable_parameters(other)] == places
    for (name, mine), (_, theirs) in zip(trainable_parameters(model), parameters, strict=True):
        assert torch.equal(mine, theirs), name
    assert all(a is b for (_, a), (_, b) in zip(trainable_parameters(other), parameters, strict=True))


def test_state_is_a_copy(make):
    model, _, _ = make()
    state = adapter_state(model)
    kept = {key: tensor.clone() for key, tensor in state.items()}
    with torch.no_grad():
        for _, parameter in trainable_parameters(model):
            parameter.zero_()
    assert all(torch.equal(state[key], kept[key]) for key in kept)


def test_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(make):
    model, _, _ = make(seed=1)
    before = adapter_state(model)
    wrong = {key: tensor + 1 for key, tensor in before.items()}
    first = min(wrong)
    bad = (
        ({key: tensor for key, tensor in wrong.items() if key != first}, "missing in the checkpoint"),
        (wrong | {"strange": torch.zeros(1)}, "'strange' is missing in the model"),
        (wrong | {first: wrong[first][:1]}, r"lora fields of the job that trained"),
        (wrong | {first: wrong[first].half()}, "float16"),
    )
    for tensors, message in bad:
        with pytest.raises(AdapterMismatchError, match=message):
            load_adapter_state(model, tensors)
    assert all(torch.equal(tensor, before[key]) for key, tensor in adapter_state(model).items())
