"""A run computes as many records at once as is exact on its machine, and does not start where not even one is."""

import itertools

import pytest
import torch

from tensorguard.data.rows import TokenRows
from tensorguard.models.bit_equality import find_bit_equal_shape
from tensorguard.models.self_test import SelfTest, SelfTestError, dummy_batches

CPU = torch.device("cpu")
EXACT, ROUNDED = SelfTest(0.0, 0.0), SelfTest(0.0, 1e-7)


def bert_with(trained, monkeypatch, factors):
    """The self-test, by number of rows, of a model whose rows are multiplied by `factors(batch)`: [rows], about 1."""
    model = trained("bert")
    compute = model.gradients.compute
    monkeypatch.setattr(
        model.gradients, "compute", lambda batch, rows: compute(batch, rows).mul_(factors(batch).unsqueeze(1))
    )
    return lambda rows: model.self_test(dummy_batches(model.task, TokenRows(16, 0, 90), rows=rows, length=16))


def test_rows_that_are_exact_are_not_reduced(one_thread):
    assert find_bit_equal_shape(lambda rows: EXACT, rows=12, device=CPU) == 12


def test_threads_are_reduced_before_records(one_thread):
    tried = []

    def test(rows):
        tried.append((rows, torch.get_num_threads()))
        return EXACT if tried[-1] == (4, 2) else ROUNDED

    try:
        torch.set_num_threads(3)
        assert find_bit_equal_shape(test, rows=6, device=CPU) == 4
        assert tried == [(6, 3), (6, 2), (6, 1), (4, 3), (4, 2)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_threads_do_not_matter_on_a_gpu(one_thread):
    tried = []

    def test(rows):
        tried.append((rows, torch.get_num_threads()))
        return EXACT if rows == 1 else ROUNDED

    try:
        torch.set_num_threads(4)
        assert find_bit_equal_shape(test, rows=4, device=torch.device("cuda")) == 1
        assert tried == [(4, 4), (2, 4), (1, 4)]
    finally:
        torch.set_num_threads(1)


def test_kernel_that_rounds_by_slot_computes_one_record_at_a_time(trained, monkeypatch):
    test = bert_with(trained, monkeypatch, lambda batch: 1 + 1e-6 * torch.arange(len(batch["labels"])))
    assert find_bit_equal_shape(test, rows=4, device=CPU) == 1


def test_kernel_that_never_repeats_its_bits_is_refused(trained, monkeypatch):
    calls = itertools.count()
    test = bert_with(trained, monkeypatch, lambda batch: 1 + 1e-6 * next(calls) * torch.ones(len(batch["labels"])))
    with pytest.raises(SelfTestError, match=r"changes by .*e-0\d when it is computed again, even alone.*fp32"):
        find_bit_equal_shape(test, rows=4, device=CPU)


def test_model_that_keeps_something_of_the_record_before_is_refused(trained, monkeypatch):
    before = [0.0]

    def factors(batch):
        factor, before[0] = 1 + 1e-7 * before[0], float(batch["input_ids"].float().mean())
        return factor * torch.ones(len(batch["labels"]))

    test = bert_with(trained, monkeypatch, factors)
    with pytest.raises(SelfTestError, match="even alone"):
        find_bit_equal_shape(test, rows=1, device=CPU)


def test_operation_without_a_deterministic_implementation_is_named():
    def test(rows):
        raise RuntimeError(
            "upsample_bicubic2d_backward_out_cuda does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'."
        )

    with pytest.raises(SelfTestError, match="the model uses upsample_bicubic2d_backward_out_cuda, which"):
        find_bit_equal_shape(test, rows=2, device=CPU)
