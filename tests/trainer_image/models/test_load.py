"""Loading: dropout off, the same head on every rank, precision, and models that are refused."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    BltConfig,
    DistilBertConfig,
    DistilBertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
)

from tensorguard.models.attention import RECORD_SDPA
from tensorguard.models.load import checkpoint_activations, load_model, prepare_base
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_named
from tensorguard.models.tokenizer import load_tokenizer
from tensorguard.models.unsupported import UnsupportedModelError, refuse_config

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def save(tmp_path):
    def saved(model):
        model.save_pretrained(tmp_path)
        return resolve_model(str(tmp_path))

    return saved


@pytest.fixture
def bert_source(save):
    return save(BertModel(BertConfig(**SMALL)))


def classifier(source, seed=7, label_names=(), **settings):
    task = task_named("SequenceClassification", labels=3, label_names=label_names)
    return load_model(source, task, init_seed=seed, **settings)


def test_missing_head_depends_on_the_seed_alone(bert_source):
    torch.manual_seed(1)
    first = classifier(bert_source)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = classifier(bert_source)
    assert torch.equal(state, torch.get_rng_state())
    assert first.fresh == ("classifier",)
    assert torch.equal(first.model.classifier.weight, second.model.classifier.weight)
    assert not torch.equal(first.model.classifier.weight, classifier(bert_source, seed=8).model.classifier.weight)


def test_missing_head_for_tags_is_fresh(save):
    names = ("O", "B-x", "I-x")
    source = save(BertModel(BertConfig(**SMALL)))
    base = load_model(source, task_named("TokenClassification", labels=3, label_names=names), init_seed=7)
    assert base.fresh == ("classifier",)
    assert base.model.config.id2label == dict(enumerate(names))
    assert base.model(torch.zeros(2, 4, dtype=torch.long)).logits.shape == (2, 4, 3)


def test_every_module_that_the_checkpoint_lacks_is_fresh(save):
    assert classifier(save(BertModel(BertConfig(**SMALL), add_pooling_layer=False))).fresh == (
        "bert.pooler",
        "classifier",
    )
    config = DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    assert set(classifier(save(DistilBertModel(config))).fresh) == {"pre_classifier", "classifier"}


@pytest.mark.slow
def test_head_for_other_labels_is_initialised_again(save):
    source = save(RobertaForSequenceClassification(RobertaConfig(**SMALL, num_labels=5)))
    base = classifier(source)
    assert base.fresh == ("classifier",)
    assert base.model.classifier.out_proj.weight.shape == (3, 16)


def test_checkpoint_without_the_weights_of_the_task_is_refused(bert_source):
    with pytest.raises(UnsupportedModelError, match=r"no weights for 'cls\..*made for CausalLM"):
        load_model(bert_source, task_named("CausalLM"), init_seed=7)


def test_label_names_are_written_into_the_config(bert_source):
    base = load_model(bert_source, task_named("SequenceClassification", label_names=("bad", "good")), init_seed=7)
    assert base.model.config.id2label == {0: "bad", 1: "good"}
    assert base.model.config.label2id == {"bad": 0, "good": 1}
    with pytest.raises(ValueError, match=r"labelNames has 2 names, but spec\.model\.numLabels is 3"):
        classifier(bert_source, label_names=("bad", "good"))
    with pytest.raises(ValueError, match="at least two labels"):
        load_model(bert_source, task_named("SequenceClassification", labels=1), init_seed=7)


@pytest.mark.parametrize(
    ("precision", "dtype"), (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16))
)
def test_weights_have_the_requested_precision(bert_source, precision, dtype):
    assert {p.dtype for p in classifier(bert_source, precision=precision).model.parameters()} == {dtype}


def test_all_dropout_of_the_base_model_is_off(save):
    dropout = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "classifier_dropout": 0.5}
    model = classifier(save(BertModel(BertConfig(**SMALL, **dropout)))).model.train()
    ids = torch.arange(12).reshape(2, 6)
    mask = torch.ones_like(ids)
    assert torch.equal(model(ids, mask).logits, model(ids, mask).logits)


def test_dropout_that_a_config_does_not_name_is_off():
    config = LlamaConfig(**SMALL, num_labels=2)
    model = LlamaForCausalLM(config)
    model.model.layers[0].mlp.act_fn = nn.Sequential(nn.SiLU(), nn.Dropout(0.5))
    model.model.layers[1].self_attn.attention_dropout = 0.5
    prepare_base(model, task_named("CausalLM"))
    assert model.model.layers[0].mlp.act_fn[1].p == 0.0
    assert model.model.layers[1].self_attn.attention_dropout == 0.0


def test_attention_and_cache_and_padding_are_set(save):
    source = save(LlamaForCausalLM(LlamaConfig(**SMALL)))
    base = load_model(source, task_named("SequenceClassification", labels=2), init_seed=7, pad_token_id=3)
    assert base.model.config._attn_implementation == RECORD_SDPA
    assert base.model.config.use_cache is False
    assert base.model.config.pad_token_id == 3
    assert base.fresh == ("score",)


def test_model_without_sdpa_uses_eager_attention():
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    model._supports_sdpa = False
    assert prepare_base(model, task_named("CausalLM")).model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("config", "message"),
    (
        (MixtralConfig(), "mixture of experts"),
        (T5Config(), "encoder-decoder"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic rotary"),
        (BltConfig(), "byte latent transformer"),
        (LlamaConfig(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}), "quantised"),
    ),
    ids=("experts", "encoder-decoder", "dynamic", "bytes", "quantised"),
)
def test_models_that_mix_records_are_refused(config, message):
    with pytest.raises(UnsupportedModelError, match=message):
        refuse_config(config)


def test_batch_norm_is_refused():
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    model.model.norm = nn.BatchNorm1d(16)
    with pytest.raises(UnsupportedModelError, match=r"'model\.norm' is batch norm"):
        prepare_base(model, task_named("CausalLM"))


def test_model_that_cannot_recompute_its_layers_is_refused(save):
    base = classifier(save(AlbertModel(AlbertConfig(**SMALL, embedding_size=8))))
    with pytest.raises(UnsupportedModelError, match=r"spec\.training\.gradientCheckpointing is true, but Albert"):
        checkpoint_activations(base.model)


def test_custom_code_of_a_model_needs_trust(tmp_path):
    mapped = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": mapped}))
    with pytest.raises(UnsupportedModelError, match=r"contains custom code: set spec\.model\.trustRemoteCode"):
        load_model(resolve_model(str(tmp_path)), task_named("CausalLM"), init_seed=7)


@pytest.mark.parametrize("kind", ("unheard-of", "bert"), ids=("kind", "weights"))
def test_files_that_cannot_be_loaded_are_reported_in_one_sentence(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UnsupportedModelError, match=r"cannot be loaded \(.*\): check its files") as raised:
        load_model(resolve_model(str(tmp_path)), task_named("CausalLM"), init_seed=7)
    assert "\n" not in str(raised.value)


def put_tokenizer(folder, **special):
    words = {"a": 0, "b": 1, "<end>": 2, "<pad>": 3}
    core = Tokenizer(WordLevel(words, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **special).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return resolve_model(str(folder))


def test_tokenizer_pads_on_the_right_with_its_pad_token(tmp_path):
    tokenizer = load_tokenizer(put_tokenizer(tmp_path, eos_token="<end>", pad_token="<pad>"), chat_template="{{ 1 }}")
    assert (tokenizer.pad_token_id, tokenizer.padding_side) == (3, "right")
    assert tokenizer.chat_template == "{{ 1 }}"


def test_tokenizer_without_a_pad_token_pads_with_its_end_token(tmp_path):
    assert load_tokenizer(put_tokenizer(tmp_path, eos_token="<end>")).pad_token_id == 2


def test_tokenizer_without_a_token_to_pad_with_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="no pad, end or unknown token"):
        load_tokenizer(put_tokenizer(tmp_path))
