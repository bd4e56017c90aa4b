"""A quantised base: its numbers, what is quantised, and that it trains as a base of those numbers would."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import save_file
from scipy.stats import norm
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tensorguard.models import quantized
from tensorguard.models.adapter import adapter_config, adapter_state
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.load import prepare_base
from tensorguard.models.output_head import find_output_head
from tensorguard.models.quantized import BLOCK, NF4_LEVELS, QuantizedLinear, quantize
from tensorguard.models.self_test import SelfTestError
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_named
from tensorguard.models.unsupported import UnsupportedModelError

SCHEMES = ("NF4", "INT8")
TEXT = task_named("CausalLM")


def linear(inputs: int, outputs: int, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """A linear layer of normal weights."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(0.02 * torch.randn(layer.weight.shape, generator=generator))
    return layer.to(dtype).requires_grad_(False)


def decoded(layer: QuantizedLinear) -> nn.Linear:
    """An ordinary layer with the same numbers."""
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None).to(layer.dtype)
    plain.load_state_dict({"weight": layer.weight, **({} if layer.bias is None else {"bias": layer.bias})})
    return plain.requires_grad_(False)


def nearest(value: float, levels: Any) -> float:
    return min(levels, key=lambda level: abs(value - level))


def reference(weight: torch.Tensor, scheme: str) -> torch.Tensor:
    """The weight that a quantised layer must make, number by number."""
    rows = []
    for row in weight.tolist():
        size = BLOCK if scheme == "NF4" else len(row)
        blocks = [row[start : start + size] for start in range(0, len(row), size)]
        levels = NF4_LEVELS if scheme == "NF4" else [number / 127 for number in range(-127, 128)]
        largest = [max(map(abs, block)) or 1.0 for block in blocks]
        rows.append([high * nearest(x / high, levels) for block, high in zip(blocks, largest) for x in block])
    return torch.tensor(rows)


def test_levels_are_quantiles_of_a_normal_distribution() -> None:
    """As in QLoRA: eight above zero, seven below it, and zero."""
    end = 0.9677083
    above, below = norm.ppf(np.linspace(end, 0.5, 9)[:-1]), -norm.ppf(np.linspace(end, 0.5, 8)[:-1])
    expected = np.sort([*above, 0.0, *below])
    assert pytest.approx(expected / expected.max(), abs=1e-6) == NF4_LEVELS


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("inputs", (128, 70, 7))
def test_weights_are_the_nearest_levels(scheme, inputs):
    layer = linear(inputs, 6)
    layer.weight[2] = 0.0
    layer.weight[3, 5:] = 0.0
    made = QuantizedLinear(layer, scheme).weight
    torch.testing.assert_close(made, reference(layer.weight, scheme), rtol=1e-6, atol=0)
    assert not made[2].any()


@pytest.mark.parametrize(("scheme", "least", "most"), (("NF4", 0.085, 0.095), ("INT8", 0.006, 0.009)))
def test_relative_error_of_normal_weights(scheme, least, most):
    layer = linear(1024, 256)
    error = QuantizedLinear(layer, scheme).weight - layer.weight
    assert least < float(error.norm() / layer.weight.norm()) < most


@pytest.mark.parametrize(("scheme", "share"), (("NF4", (1 - NF4_LEVELS[1]) / 2 + 1e-6), ("INT8", 0.5 / 127 + 1e-6)))
def test_no_number_is_off_by_more_than_half_a_gap(scheme, share):
    layer = linear(BLOCK, 64)
    made = QuantizedLinear(layer, scheme).weight
    largest = layer.weight.abs().amax(dim=1, keepdim=True)
    assert ((made - layer.weight).abs() <= share * largest).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_in_half_precision_are_the_rounded_ones(scheme):
    half = linear(96, 8, dtype=torch.bfloat16)
    whole = nn.Linear(96, 8)
    whole.load_state_dict(half.state_dict())
    layer = QuantizedLinear(half, scheme)
    assert layer.scales.dtype == torch.float32
    assert torch.equal(layer.weight, QuantizedLinear(whole, scheme).weight.bfloat16())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_number_that_is_not_finite_stays_visible(scheme):
    layer = linear(BLOCK, 3)
    layer.weight[1, 4] = float("inf")
    layer.weight[2, 4] = float("nan")
    made = QuantizedLinear(layer, scheme).weight
    assert made[0].isfinite().all() and made[1:].isnan().any(dim=1).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pieces_change_no_bit(scheme, monkeypatch):
    layer = linear(70, 13)
    whole = QuantizedLinear(layer, scheme)
    monkeypatch.setattr(quantized, "_PIECE", 3 * 70)
    pieces = QuantizedLinear(layer, scheme)
    assert torch.equal(pieces.codes, whole.codes) and torch.equal(pieces.scales, whole.scales)
    made = pieces.weight
    monkeypatch.undo()
    assert torch.equal(made, whole.weight)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((4,), (3, 5)))
@pytest.mark.parametrize("bias", (True, False))
def test_output_and_gradient_are_those_of_the_same_numbers(scheme, dtype, shape, bias):
    layer = QuantizedLinear(linear(70, 9, bias=bias, dtype=dtype), scheme)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(*shape, 70, generator=generator).to(dtype)
    gradient = torch.randn(*shape, 9, generator=generator).to(dtype)
    outputs, slopes = [], []
    for each in (layer, decoded(layer)):
        given = inputs.clone().requires_grad_()
        outputs.append(each(given))
        outputs[-1].backward(gradient)
        slopes.append(given.grad)
    assert torch.equal(*outputs) and torch.equal(*slopes)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_backward_pass_keeps_no_weight(scheme):
    layer = QuantizedLinear(linear(128, 64), scheme)
    inputs = torch.randn(2, 128, requires_grad=True)
    kept = layer(inputs).grad_fn.saved_tensors
    assert {tensor.data_ptr() for tensor in kept} == {layer.codes.data_ptr(), layer.scales.data_ptr()}
    assert layer(inputs.detach()).grad_fn is None


@pytest.mark.parametrize(("scheme", "size"), (("NF4", 64 * (128 // 2 + 4 * 2)), ("INT8", 64 * (128 + 4))))
def test_bytes_of_a_layer(scheme, size):
    layer = QuantizedLinear(linear(128, 64, bias=False), scheme)
    assert sum(parameter.nbytes for parameter in layer.parameters()) == size
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert all(len(parameter) == 64 for parameter in layer.parameters()), "the dimension along which FSDP2 shards"
    assert not list(layer.buffers())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
@pytest.mark.parametrize("kind", ("bert", "bert-tags", "llama", "vit"))
def test_self_test_passes_bit_equal(trained, kind, precision, scheme):
    model = trained(kind, precision=precision, quantization=scheme, dropout=0.1)
    report = model.self_test()
    assert report.bit_equal and report.sum_error < 1e-5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_self_test_passes_with_recomputed_activations_and_modules_trained_in_full(trained, scheme):
    settings = {"checkpointing": True, "modules_to_save": ["embed_tokens", "norm", "mlp"]}
    model = trained("llama", precision="bf16", quantization=scheme, target_modules=["q_proj", "v_proj"], **settings)
    assert model.self_test().bit_equal


def test_layer_that_scales_its_inputs_over_the_batch_is_found(trained, monkeypatch):
    def scaled(layer, inputs):
        scale = inputs.detach().abs().amax() / 127
        return nn.functional.linear((inputs / scale).round() * scale, layer.weight, layer.bias)

    monkeypatch.setattr(QuantizedLinear, "forward", scaled)
    with pytest.raises(SelfTestError, match="couples the records"):
        trained("llama", quantization="INT8", target_modules=["down_proj"], layers=[1]).self_test()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
@pytest.mark.parametrize("kind", ("bert", "llama"))
def test_gradients_of_records_are_those_of_a_base_of_the_same_numbers(trained, kind, precision, scheme):
    """The adapters of both start from the same values too."""
    model, plain = trained(kind, precision=precision, quantization=scheme), trained(kind, precision=precision)
    layers = dict(plain.model.named_modules())
    for name, layer in model.model.named_modules():
        if isinstance(layer, QuantizedLinear):
            layers[name].load_state_dict(decoded(layer).state_dict())
    for checked, (_, parameter) in zip(plain.gradients.parameters, model.gradients.parameters, strict=True):
        assert torch.equal(checked[1], parameter), checked[0]
    assert torch.equal(model.rows(model.batch(3)), plain.rows(plain.batch(3)))


def test_loss_in_chunks_and_recomputed_activations_change_no_result(trained):
    whole = trained("llama", quantization="NF4")
    head = find_output_head(whole.task, whole.model, whole.batch(0))
    assert head is not None
    parts = trained("llama", quantization="NF4", checkpointing=True)
    parts.gradients._loss = record_loss(parts.task, find_output_head(parts.task, parts.model, parts.batch(0)))
    torch.testing.assert_close(parts.rows(whole.batch(3)), whole.rows(whole.batch(3)), rtol=1e-4, atol=1e-6)


def quantized_names(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def small_llama(**changes: Any) -> LlamaForCausalLM:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=97, **size, **changes))


def test_all_frozen_linear_layers_but_the_output_are_quantised():
    model = small_llama()
    prepare_base(model, TEXT, quantization="NF4")
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert len(linears) == 15 and quantized_names(model) == linears - {"lm_head"}
    assert model.model.embed_tokens.weight.dtype == torch.float32


def test_heads_and_modules_trained_in_full_are_not_quantised(trained):
    tags = quantized_names(trained("bert", quantization="INT8").model)
    assert len(tags) == 13 and not any("classifier" in name for name in tags)
    saved = quantized_names(trained("llama", quantization="INT8", modules_to_save=["o_proj"]).model)
    assert len(saved) == 12 and not any("o_proj" in name for name in saved)


def test_shared_weights_and_subclasses_are_not_quantised():
    model = small_llama()
    first, second = model.model.layers
    second.mlp.up_proj.weight = first.mlp.up_proj.weight
    first.self_attn.q_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(32, 32)
    quantize(model, "INT8", [])
    assert len(quantized_names(model)) == 11
    assert second.mlp.up_proj.weight is first.mlp.up_proj.weight
    assert type(first.self_attn.q_proj) is nn.modules.linear.NonDynamicallyQuantizableLinear


def test_model_that_cannot_be_quantised_is_refused(trained):
    with pytest.raises(UnsupportedModelError, match=r"spec\.model\.quantization is NF4, but '.*c_attn' is a Conv1D"):
        trained("gpt2", quantization="NF4")
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM has no linear layer that can be quantised"):
        quantize(small_llama(), "INT8", ["model"])


def test_each_weight_is_freed_before_the_next_is_encoded(monkeypatch):
    model = small_llama()
    weights = [weakref.ref(module.weight) for module in model.model.modules() if isinstance(module, nn.Linear)]
    init, alive = QuantizedLinear.__init__, []

    def counted(layer, whole, scheme):
        alive.append(sum(weight() is not None for weight in weights))
        init(layer, whole, scheme)

    monkeypatch.setattr(QuantizedLinear, "__init__", counted)
    quantize(model, "NF4", [])
    assert alive == list(range(len(weights), 0, -1))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_plain_peft_loads_the_adapter_on_the_whole_base(trained, tmp_path, scheme):
    """Its files are those of a job without quantisation."""
    model, plain = trained("llama", quantization=scheme), trained("llama")
    base = plain.model.unload()
    base.save_pretrained(tmp_path / "base")
    source = resolve_model(str(tmp_path / "base"))
    plain = trained("llama")
    assert adapter_config(model.model, source) == adapter_config(plain.model, source)
    state = adapter_state(model.model)
    assert state.keys() == adapter_state(plain.model).keys()
    folder = tmp_path / "adapter"
    plain.model.peft_config["default"].save_pretrained(folder)
    save_file(state, folder / "adapter_model.safetensors")
    loaded = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tmp_path / "base"), folder).eval()
    tokens = torch.arange(12).view(2, 6)
    expected = plain.model.eval()(input_ids=tokens).logits
    torch.testing.assert_close(loaded(input_ids=tokens).logits, expected, rtol=1e-5, atol=1e-6)
