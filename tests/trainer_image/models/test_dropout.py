"""Dropout seeded by record."""

import pytest
import torch

from tensorguard.models.dropout import RecordDropout, RecordSeeds, record_seeds
from tensorguard.privacy.gradients import NotByRecordError


@pytest.fixture
def seeds():
    return RecordSeeds()


@pytest.fixture
def dropout(seeds):
    return RecordDropout(0.25, 3, "third", seeds).train()


def test_dropout_drops_the_given_share_and_keeps_the_mean(seeds, dropout):
    with seeds.use([1, 2]):
        out = dropout(torch.ones(2, 200, 200))
    assert out.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert float((out == 0).double().mean()) == pytest.approx(0.25, abs=0.01)


def test_mask_of_a_record_is_the_same_in_every_slot(seeds, dropout):
    x = torch.ones(3, 5, 8)
    with seeds.use([7, 8, 9]):
        first = dropout(x)
    with seeds.use([10, 7, 11]):
        second = dropout(x)
    assert torch.equal(first[0], second[1])
    assert not torch.equal(first[0], first[1])


def test_layers_draw_different_masks_that_ignore_the_global_seed(seeds, dropout):
    other = RecordDropout(0.25, 4, "fourth", seeds).train()
    x = torch.ones(1, 5, 8)
    with seeds.use([2**63 - 1]):
        torch.manual_seed(0)
        first = dropout(x)
        state = torch.get_rng_state()
        assert not torch.equal(first, other(x))
        torch.manual_seed(1)
        assert torch.equal(first, dropout(x))
        torch.manual_seed(0)
        assert torch.equal(state, torch.get_rng_state())


def test_seeds_that_differ_only_in_high_bits_give_different_masks(seeds, dropout):
    with seeds.use([5, 5 + 2**32, 5 + 2**60]):
        out = dropout(torch.ones(3, 5, 8))
    assert not torch.equal(out[0], out[1]) and not torch.equal(out[1], out[2])


def test_evaluation_needs_no_seeds(dropout):
    x = torch.randn(2, 3)
    assert torch.equal(dropout.eval()(x), x)


def test_layer_whose_rows_are_not_records_is_refused_by_name(seeds, dropout):
    with seeds.use([1, 2]), pytest.raises(NotByRecordError, match="'third' sees 6 rows in a batch of 2 records"):
        dropout(torch.ones(6, 3))


def test_training_without_seeds_is_refused(trained):
    model = trained("bert", dropout=0.1)
    with pytest.raises(RuntimeError, match="record_seeds"):
        model.gradients.compute(model.batch(0), 4)


def test_seeds_do_not_nest_and_are_removed_after_an_error(trained):
    model = trained("bert", dropout=0.1).model
    with pytest.raises(RuntimeError, match="already in use"), record_seeds(model, [1]), record_seeds(model, [2]):
        pass
    assert model.record_seeds.current is None
