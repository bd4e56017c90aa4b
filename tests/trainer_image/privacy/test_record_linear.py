"""Linear layers that hand over what the gradient of each record is made of."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.record_linear import RecordLinear, weight_gradients

SHAPES = pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6), (4, 2, 3, 6)], ids=["flat", "tokens", "patches"])


class Doubling(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def inputs(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def collected(layer, x):
    """What the layer hands over in one backward pass of the squares of its output."""
    found = []
    linear = RecordLinear(nn.Sequential(layer), lambda *received: found.append(received))
    layer(x).square().sum().backward()
    linear.close()
    return found


def trainable(model):
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def squares(model, batch):
    return model(batch["x"]).square().flatten(1).sum(dim=1)


@SHAPES
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_each_record_alone(shape, bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3, bias=bias)).train()
    x = inputs(shape)
    expected = []
    for record in x:
        squares(model, {"x": record[None]}).sum().backward()
        expected.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        model.zero_grad()
    gradients = PerExampleGradients(model, trainable(model), squares)
    torch.testing.assert_close(gradients.compute({"x": x}, 4), torch.stack(expected), rtol=1e-5, atol=1e-6)


@SHAPES
def test_output_and_gradient_of_the_input_are_those_of_an_ordinary_layer(shape):
    torch.manual_seed(0)
    layer, x, y = nn.Linear(6, 5), inputs(shape).requires_grad_(), inputs(shape).requires_grad_()
    plain = layer(y)
    plain.square().sum().backward()
    linear = RecordLinear(nn.Sequential(layer), lambda *_: None)
    output = layer(x)
    output.square().sum().backward()
    linear.close()
    assert torch.equal(output, plain)
    assert torch.equal(x.grad, y.grad)


def test_input_and_gradient_of_the_output_are_handed_over_with_the_name():
    layer, x = nn.Linear(6, 5), inputs((4, 3, 6))
    ((name, same, given, gradient),) = collected(layer, x)
    assert (name, same) == ("0", layer)
    assert torch.equal(given, x)
    assert torch.equal(gradient, 2 * functional.linear(x, layer.weight, layer.bias))


def test_gradient_of_all_records_together_is_not_computed():
    layer = nn.Linear(6, 5)
    collected(layer, inputs((4, 6)))
    assert layer.weight.grad is None and layer.bias.grad is None


def test_only_trained_linear_layers_are_replaced():
    changed = nn.Linear(6, 6)
    changed.forward = lambda x: 3 * x
    model = nn.Sequential(
        nn.Linear(6, 6).requires_grad_(False), nn.LayerNorm(6), Doubling(6, 6), changed, nn.Linear(6, 6)
    )
    linear = RecordLinear(model, lambda *_: None)
    assert list(linear.layers) == ["4"]
    linear.close()
    assert "forward" not in vars(model[4]) and "forward" in vars(changed)
    linear.close()


def test_layer_that_computes_something_else_gets_the_gradients_of_opacus():
    """These are wrong for it, so that the self-test refuses the model."""
    torch.manual_seed(0)
    model = nn.Sequential(Doubling(6, 5)).train()
    gradients = PerExampleGradients(model, trainable(model), squares)
    assert gradients.compute({"x": inputs((4, 6))}, 4).shape == (4, 35)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_part_of_a_layer_has_no_gradient_and_passes_that_of_its_input_on(frozen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)).train()
    whole = PerExampleGradients(model, trainable(model), squares)
    expected = whole.compute({"x": inputs((4, 3, 6))}, 4).clone()
    whole.close()
    getattr(model[1], frozen).requires_grad_(False)
    part = PerExampleGradients(model, trainable(model), squares)
    found = part.compute({"x": inputs((4, 3, 6))}, 4)
    below, weight, bias = expected.split([42, 30, 5], dim=1)
    assert torch.equal(found, torch.cat([below, bias if frozen == "weight" else weight], dim=1))


def test_ordinary_gradients_where_it_is_not_enabled():
    layer, found = nn.Linear(6, 5), []
    linear = RecordLinear(nn.Sequential(layer), lambda *received: found.append(received))
    linear.enabled = False
    layer(inputs((4, 6))).sum().backward()
    assert layer.weight.grad is not None and not found


def test_nothing_is_kept_of_a_pass_without_gradients():
    layer = nn.Linear(6, 5)
    linear = RecordLinear(nn.Sequential(layer), lambda *_: None)
    with torch.no_grad():
        assert layer(inputs((4, 6))).grad_fn is None
    linear.close()


def test_product_is_a_sum_over_the_positions_of_one_record():
    x, y = inputs((4, 3, 6)), inputs((4, 3, 5), seed=1)
    torch.testing.assert_close(weight_gradients(x, y), torch.einsum("npo,npi->noi", y, x))
