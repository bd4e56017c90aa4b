"""Attaching an adapter: which parameters are trained, their dtypes and seeds, and which names are refused."""

from typing import get_args

import peft
import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from tensafe_api.resources.model import Lora
from tensorguard.models.adapter import adapter_state
from tensorguard.models.dropout import RecordDropout
from tensorguard.models.load import prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.targets import LoraTargetError
from tensorguard.models.tasks import task_named
from tensorguard.models.unsupported import UnsupportedModelError, refuse_trainable

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}

VARIANTS = get_args(Lora.model_fields["variant"].annotation)


def bert():
    return prepare_base(
        BertForSequenceClassification(BertConfig(**SMALL)), task_named("SequenceClassification", labels=2)
    )


def llama(dtype=torch.float32, **changes):
    return prepare_base(
        LlamaForCausalLM(LlamaConfig(**SMALL, **changes)).to(dtype), task_named("CausalLM"), pad_token_id=0
    )


def gpt2():
    return prepare_base(
        GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)), task_named("CausalLM")
    )


def attach(base, **changes):
    return attach_lora(base, **{"rank": 2, "alpha": 4, "dropout": 0.0, "init_seed": 7} | changes)


def adapted(model):
    base = model.get_base_model()
    return {name for name, module in base.named_modules() if isinstance(module, LoraLayer)}


def test_default_targets_are_those_of_peft():
    assert {name.rsplit(".", 1)[-1] for name in adapted(attach(bert()))} == {"query", "value"}


def test_layers_limit_the_targets():
    names = adapted(attach(bert(), target_modules=["query"], layers=[0, 2]))
    assert names == {f"bert.encoder.layer.{i}.attention.self.query" for i in (0, 2)}


def test_all_linear_adapts_every_linear_layer_of_the_given_layers_except_heads():
    names = adapted(attach(llama(), target_modules=["all-linear"], layers=[1]))
    assert len(names) == 7 and all(name.startswith("model.layers.1.") for name in names)
    assert "classifier" not in adapted(attach(bert(), target_modules=["all-linear"]))
    assert {name.rsplit(".", 1)[-1] for name in adapted(attach(gpt2(), target_modules=["all-linear"]))} == {
        "c_attn",
        "c_proj",
        "c_fc",
    }


def test_factors_of_conv1d_are_transposed():
    model = attach(gpt2(), target_modules=["c_attn"])
    assert model.peft_config["default"].fan_in_fan_out is True
    layer = model.get_submodule("base_model.model.transformer.h.0.attn.c_attn")
    assert layer.lora_A.default.weight.shape == (2, 16) and layer.lora_B.default.weight.shape == (48, 2)


def test_only_the_adapter_and_the_head_are_trained():
    names = [name for name, _ in trainable_parameters(attach(bert(), target_modules=["query"], layers=[1]))]
    assert len(names) == 4
    assert sum("classifier.modules_to_save" in name for name in names) == 2


def test_frozen_first_factors_are_not_trained_and_are_saved():
    standard, frozen = (attach(llama(), target_modules=["q_proj", "down_proj"], variant=each) for each in VARIANTS)
    names = [name for name, _ in trainable_parameters(frozen)]
    assert names == [name for name, _ in trainable_parameters(standard) if "lora_B" in name] and len(names) == 6
    started, initial = adapter_state(standard), adapter_state(frozen)
    assert initial.keys() == started.keys() and any("lora_A" in key for key in initial)
    assert all(torch.equal(initial[key], started[key]) for key in initial)


@pytest.mark.parametrize("kind", ("llama", "gpt2", "bert"))
def test_gradients_beside_frozen_first_factors_are_those_of_one_record(trained, kind):
    model = trained(kind, variant="FrozenA")
    assert model.self_test().bit_equal
    assert model.gradients.dimension == sum(each.numel() for _, each in trainable_parameters(model.model))


def test_initial_factors_depend_on_the_seed_alone():
    torch.manual_seed(0)
    base, again, other = llama(), llama(), llama()
    torch.manual_seed(1)
    first = attach(base)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = attach(again)
    assert torch.equal(state, torch.get_rng_state())
    pairs = list(zip(trainable_parameters(first), trainable_parameters(second), strict=True))
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    third = dict(trainable_parameters(attach(other, init_seed=8)))
    assert not all(torch.equal(parameter, third[name]) for name, parameter in trainable_parameters(first))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_trained_parameters_are_fp32_and_all_others_stay_half(dtype):
    model = attach(llama(dtype, tie_word_embeddings=False), modules_to_save=["lm_head", "model.norm", "embed_tokens"])
    assert {p.dtype for _, p in trainable_parameters(model)} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {dtype}
    logits = model(input_ids=torch.arange(12).reshape(2, 6), attention_mask=torch.ones(2, 6, dtype=torch.long)).logits
    assert logits.dtype == torch.float32  # the head's own output is not rounded
    logits.sum().backward()
    assert all(p.grad is not None for _, p in trainable_parameters(model))


def test_alpha_over_rank_scales_the_factors():
    model = attach(bert(), rank=4, alpha=6)
    assert next(m for m in model.modules() if isinstance(m, LoraLayer)).scaling["default"] == 1.5


def test_dropout_is_by_record():
    model = attach(bert(), dropout=0.1)
    dropouts = [m for m in model.modules() if isinstance(m, RecordDropout)]
    assert len({m.layer for m in dropouts}) == len(dropouts) == 6
    assert not any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())


@pytest.mark.parametrize(
    ("base", "fields", "message"),
    (
        (bert, {"target_modules": ["qeury"]}, r"targetModules has 'qeury', which names no layer; near names: query"),
        (bert, {"target_modules": ["query", "q_proj"]}, "'q_proj', which names no layer"),
        (bert, {"target_modules": ["query"], "layers": [1, 9]}, r"layers has 9, but the layers to adapt are 0 to 2"),
        (bert, {"target_modules": ["pooler.dense"], "layers": [0]}, "not numbered"),
        (bert, {"target_modules": ["classifier"]}, "trained in full"),
        (
            bert,
            {"modules_to_save": ["clasifier"]},
            "modulesToSave has 'clasifier', which names no module; near names: cla",
        ),
    ),
)
def test_names_that_do_not_fit_are_refused_with_the_field(base, fields, message):
    with pytest.raises(LoraTargetError, match=message):
        attach(base(), **fields)


def test_modules_to_save_match_whole_names_and_not_only_their_ends():
    names = [name for name, _ in trainable_parameters(attach(llama(), modules_to_save=["norm"])) if "lora" not in name]
    assert names == ["base_model.model.model.norm.modules_to_save.default.weight"]
    base = llama(tie_word_embeddings=False)
    base.model.other_lm_head = nn.Linear(16, 2)
    with pytest.raises(LoraTargetError, match="would train 'other_lm_head'"):
        attach(base, modules_to_save=["lm_head"])


def test_model_unknown_to_peft_needs_target_names():
    base = llama()
    base.model.config.model_type = "unheard-of"
    with pytest.raises(LoraTargetError, match="peft has no default for 'unheard-of'"):
        attach(base)


def test_refusal_by_peft_is_reported_with_the_field():
    config = MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(LoraTargetError, match=r"spec\.lora does not fit the model, peft reports: .*out_proj"):
        attach(prepare_base(MambaForCausalLM(config), task_named("CausalLM")), target_modules=["out_proj"])


def test_embedding_as_target_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"'model\.embed_tokens', a Embedding"):
        attach(llama(), target_modules=["embed_tokens"])


def test_convolution_as_target_is_refused():
    base = llama()
    base.model.model.extra = nn.Conv1d(2, 2, 1)
    with pytest.raises(UnsupportedModelError, match="a Conv1d: LoRA is supported for"):
        attach(base, target_modules=["extra"])


@pytest.mark.parametrize("name", ("lm_head", "embed_tokens"))
def test_tied_weight_is_refused(name):
    with pytest.raises(UnsupportedModelError, match="is the same weight as"):
        attach(llama(tie_word_embeddings=True), modules_to_save=[name])
    attach(llama(tie_word_embeddings=False), modules_to_save=[name])


def test_trained_module_with_buffers_is_refused():
    base = llama()
    base.model.model.norm.register_buffer("running", torch.zeros(1))
    with pytest.raises(UnsupportedModelError, match="has buffers"):
        attach(base, modules_to_save=["model.norm"])


def plain_peft(**changes):
    settings = {"r": 2, "task_type": "CAUSAL_LM", "target_modules": ["q_proj"]} | changes
    return peft.get_peft_model(llama().model, peft.LoraConfig(**settings))


def test_adapters_without_per_example_gradients_are_refused():
    refuse_trainable(plain_peft())
    with pytest.raises(UnsupportedModelError, match="belongs to DoRA"):
        refuse_trainable(plain_peft(use_dora=True))
    with pytest.raises(UnsupportedModelError, match="LoRA on an embedding"):
        refuse_trainable(plain_peft(target_modules=["embed_tokens"]))
    tied = plain_peft()
    first, second = [m.lora_A.default for m in tied.modules() if isinstance(m, LoraLayer)][:2]
    second.weight = first.weight
    with pytest.raises(UnsupportedModelError, match="are one parameter"):
        refuse_trainable(tied)
    with pytest.raises(UnsupportedModelError, match="must be float32"):
        refuse_trainable(plain_peft().to(torch.bfloat16))
