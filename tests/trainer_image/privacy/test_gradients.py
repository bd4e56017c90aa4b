"""Per-example gradients of plain PyTorch modules: their values, the loss scale, and models that are refused."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensorguard.privacy.gradients import NotByRecordError, PerExampleGradients


def parameters(model):
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def squares(model, batch):
    return (model(batch["x"]) - batch["y"]).square().flatten(1).sum(dim=1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)).train()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(4, 3, 6, generator=generator), "y": torch.randn(4, 3, 2, generator=generator)}


def one_by_one(model, batch):
    """The expected rows: an ordinary backward pass for each record, before any hook is installed."""
    rows = []
    for i in range(len(batch["x"])):
        squares(model, {name: tensor[i : i + 1].clone() for name, tensor in batch.items()}).sum().backward()
        rows.append(torch.cat([parameter.grad.flatten() for _, parameter in parameters(model)]))
        model.zero_grad(set_to_none=True)
    return torch.stack(rows)


def test_rows_equal_a_loop_over_records_in_the_order_of_the_parameters(model, batch):
    expected = one_by_one(model, batch)
    gradients = PerExampleGradients(model, parameters(model), squares)
    found = gradients.compute(batch, 4)
    assert found.shape == (4, gradients.dimension) and found.dtype == torch.float32
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients.summed_gradient(batch), expected.sum(dim=0), rtol=1e-5, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_parameters_have_no_column(model, batch):
    model[0].requires_grad_(False)
    expected = one_by_one(model, batch)
    gradients = PerExampleGradients(model, parameters(model), squares)
    assert gradients.dimension == 5 + 5 + 5 * 2 + 2
    torch.testing.assert_close(gradients.compute(batch, 4), expected, rtol=1e-5, atol=1e-6)


def test_dummy_rows_are_left_out(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    full = gradients.compute(batch, 4).clone()
    assert torch.equal(gradients.compute(batch, 2), full[:2])


def test_losses_are_those_of_the_records_and_not_of_dummy_rows(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    kept = [0.5]
    gradients.compute(batch, 3, losses_into=kept)
    assert kept == [0.5, *squares(model, batch)[:3].tolist()]
    gradients.compute(batch, 0, losses_into=kept)
    assert len(kept) == 4


def test_batch_of_dummies_gives_no_row(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    gradients.compute(batch, 4)
    assert gradients.compute(batch, 0).shape == (0, gradients.dimension), "a row of the previous draw"


def test_calls_do_not_accumulate_and_share_one_buffer(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    first = gradients.compute(batch, 4)
    kept = first.clone()
    again = gradients.compute(batch, 4)
    assert torch.equal(again, kept) and again.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("scale", (2.0**14, 3.7))
def test_loss_scale_is_divided_out(model, batch, scale):
    plain = PerExampleGradients(model, parameters(model), squares)
    expected = plain.compute(batch, 4).clone()
    plain.close()
    scaled = PerExampleGradients(model, parameters(model), squares, loss_scale=scale)
    found = scaled.compute(batch, 4)
    torch.testing.assert_close(
        found, expected, rtol=0 if scale == 2.0**14 else 1e-5, atol=0 if scale == 2.0**14 else 1e-6
    )
    torch.testing.assert_close(scaled.summed_gradient(batch), expected.sum(dim=0), rtol=1e-5, atol=1e-6)


def test_overflow_stays_in_its_own_row(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    before = gradients.compute(batch, 4).clone()
    batch["y"][2] = 1e38
    after = gradients.compute(batch, 4)
    assert not after[2].isfinite().all()
    assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]])


EACH_KIND = pytest.mark.parametrize(
    "layer", [lambda: nn.Linear(6, 6), lambda: nn.LayerNorm(6)], ids=["linear", "other"]
)


class Shared(nn.Module):
    """One layer, applied twice, recomputed each time. Opacus without our hooks leaves a list of gradients."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        x = x.requires_grad_()
        for _ in range(2):
            x = checkpoint(lambda h: self.layer(h).tanh(), x, use_reentrant=True)
        return x[..., :2]


@EACH_KIND
def test_gradients_of_a_layer_used_twice_are_added_even_with_recomputation(batch, layer):
    torch.manual_seed(0)
    model = Shared(layer()).train()
    expected = one_by_one(model, batch)
    gradients = PerExampleGradients(model, parameters(model), squares)
    torch.testing.assert_close(gradients.compute(batch, 4), expected, rtol=1e-5, atol=1e-6)


def test_incomplete_pass_leaves_nothing_behind(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    expected = gradients.compute(batch, 4).clone()
    gradients.losses(batch)  # a forward pass in train mode without a backward pass
    with pytest.raises(RuntimeError):
        gradients.compute({"x": batch["x"], "y": batch["y"][:, :, :1].expand(-1, -1, 7)}, 4)
    assert torch.equal(gradients.compute(batch, 4), expected)


def test_incomplete_pass_leaves_no_activations_in_the_next(model, batch):
    """They are those of private records, and one more row would take part in the next gradients."""
    gradients = PerExampleGradients(model, parameters(model), squares)
    few = {name: tensor[:2] for name, tensor in batch.items()}
    expected = gradients.compute(few, 2).clone()
    gradients.losses(batch)
    with pytest.raises(RuntimeError):
        gradients.compute({"x": batch["x"], "y": batch["y"][:, :, :1].expand(-1, -1, 7)}, 4)
    assert torch.equal(gradients.compute(few, 2), expected)
    for module in model.modules():
        assert not vars(module).get("activations") and "max_batch_len" not in vars(module)


class Failing(nn.Module):
    """One layer that is applied twice. With `fails`, its second use has other rows than records and is refused."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.fails = False

    def forward(self, x):
        result = self.layer(torch.ones(1, 3, 6)) + self.layer(x) if self.fails else self.layer(x)
        return result[..., :2]


@EACH_KIND
def test_gradient_of_a_failed_pass_is_not_added_to_the_next(batch, layer):
    torch.manual_seed(0)
    model = Failing(layer()).train()
    gradients = PerExampleGradients(model, parameters(model), squares)
    expected = gradients.compute(batch, 4).clone()
    for records in (4, 2):
        model.fails = True
        with pytest.raises(ValueError, match="cannot be separated by record"):
            gradients.compute({name: tensor[:records] for name, tensor in batch.items()}, records)
        model.fails = False
        assert torch.equal(gradients.compute(batch, 4), expected)


def test_layer_that_mixes_records_is_refused():
    """Batch normalisation: the gradient of a record would depend on the others."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).train()
    with pytest.raises(NotImplementedError, match="buffers"):
        PerExampleGradients(model, parameters(model), squares)


def test_summed_gradient_of_a_parameter_without_part_in_the_loss_is_zero(model, batch):
    wider = nn.ModuleDict({"used": model, "unused": nn.Linear(2, 3)}).train()
    gradients = PerExampleGradients(wider, parameters(wider), lambda m, b: squares(m["used"], b))
    summed = gradients.summed_gradient(batch)
    assert summed.shape == (gradients.dimension,)
    assert not summed[-9:].any() and summed[:-9].any()


def test_close_removes_hooks_and_attributes(model, batch):
    gradients = PerExampleGradients(model, parameters(model), squares)
    gradients.compute(batch, 4)
    gradients.close()
    squares(model, batch).sum().backward()
    assert not any(hasattr(parameter, "grad_sample") for parameter in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    PerExampleGradients(model, parameters(model), squares).compute(batch, 4)


class Positions(nn.Module):
    """Adds a learned table that all records share. Its activations have one row for any batch size."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 6)
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(x + self.table(torch.arange(3)[None]))


def test_layer_whose_rows_are_not_records_is_refused(batch):
    model = Positions().train()
    gradients = PerExampleGradients(model, parameters(model), squares)
    with pytest.raises(ValueError, match=r"'table' sees \[1\] rows in a batch of 4 records"):
        gradients.compute(batch, 4)


class Mixed(nn.Module):
    """One layer for the records and for a shared input. Opacus without our hooks adds the shared part to record 0."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return (self.layer(x) + self.layer(torch.ones(1, 3, 6)))[..., :2]


@EACH_KIND
def test_layer_with_some_rows_that_are_not_records_is_refused(batch, layer):
    model = Mixed(layer()).train()
    gradients = PerExampleGradients(model, parameters(model), squares)
    with pytest.raises(ValueError, match=r"'layer' sees \[1\] rows in a batch of 4 records"):
        gradients.compute(batch, 4)


def test_parameter_that_takes_no_part_in_the_loss_is_named(model, batch):
    wider = nn.ModuleDict({"used": model, "unused": nn.Linear(2, 2)}).train()
    gradients = PerExampleGradients(wider, parameters(wider), lambda m, b: squares(m["used"], b))
    with pytest.raises(NotByRecordError, match=r"'unused.weight' got no gradient"):
        gradients.compute(batch, 4)


def test_non_reentrant_checkpointing_is_refused(model, batch):
    def recomputed(module, inputs):
        return (checkpoint(module, inputs["x"], use_reentrant=False) - inputs["y"]).square().sum(dim=(1, 2))

    gradients = PerExampleGradients(model, parameters(model), recomputed)
    with pytest.raises((RuntimeError, ValueError)):
        gradients.compute(batch, 4)


@pytest.mark.parametrize("loss", (lambda m, b: squares(m, b).mean(), lambda m, b: squares(m, b)[:2]))
def test_loss_that_is_not_one_number_per_record_is_refused(model, batch, loss):
    gradients = PerExampleGradients(model, parameters(model), loss)
    with pytest.raises(ValueError, match="one number for each record"):
        gradients.compute(batch, 4)


def test_evaluation_mode_is_refused(model, batch):
    gradients = PerExampleGradients(model.eval(), parameters(model), squares)
    with pytest.raises(RuntimeError, match=r"call model\.train"):
        gradients.compute(batch, 4)


def test_autocast_is_refused(model, batch):
    def loss(module, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = module[3](module[0](inputs["x"])[..., :5])
        return out.float().square().sum(dim=(1, 2))

    model[2].requires_grad_(False)
    gradients = PerExampleGradients(model, parameters(model), loss)
    with pytest.raises(RuntimeError, match="without autocast"):
        gradients.compute(batch, 4)


def test_half_precision_parameters_are_refused(model):
    model[0].to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"'0.weight' is torch.bfloat16"):
        PerExampleGradients(model, parameters(model), squares)


def test_parameters_must_be_exactly_the_trainable_ones(model):
    with pytest.raises(ValueError, match="exactly the trainable parameters"):
        PerExampleGradients(model, parameters(model)[1:], squares)
