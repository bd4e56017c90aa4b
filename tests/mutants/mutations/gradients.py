"""Mistakes in the gradients of records: dropout, losses, layers, and the self-test that finds inexact kernels."""

from __future__ import annotations

from mutations.mutation import (
    MODEL_TESTS,
    PRIVACY_TESTS,
    TRAINER,
    TRAINING_TESTS,
    Edit,
    Mutation,
)

_SET_UP = TRAINER + "training/setup.py"
_BIT_EQUALITY = TRAINER + "models/bit_equality.py"
_SELF_TEST = TRAINER + "models/self_test.py"
_MATRIX_LIBRARY = TRAINER + "models/matrix_library.py"
_OPENMP = TRAINER + "models/openmp.py"
_VECTOR_TAILS = TRAINER + "models/simd_remainder.py"

GRADIENTS: tuple[Mutation, ...] = (
    Mutation(
        "dropout is keyed by the slot in the micro-batch",
        (
            Edit(
                TRAINER + "training/unit_gradients.py",
                "seeds = dropout(batch.units, batch.records) + [0] * dummies",
                "seeds = list(range(len(batch.units))) + [0] * dummies",
            ),
        ),
        (TRAINING_TESTS + "test_sensitivity.py::test_sum_does_not_depend_on_the_order_of_the_batch",),
    ),
    Mutation(
        "the loss is the mean over the batch's tokens instead of each record's",
        (
            Edit(
                TRAINER + "models/losses.py",
                "learned.to(dtype) / learned.sum(dim=1, keepdim=True).clamp(min=1)",
                "learned.to(dtype) / learned.sum().clamp(min=1)",
            ),
        ),
        (
            "tests/trainer_image/models/test_losses.py"
            "::test_causal_loss_is_the_mean_over_the_records_own_learned_tokens",
            "tests/trainer_image/models/test_record_independence.py::test_hostile_record_changes_no_other_gradient",
        ),
    ),
    Mutation(
        "the loss in chunks is the mean over the batch's tokens instead of each record's",
        (
            Edit(
                TRAINER + "models/output_head.py",
                "weights = token_weights(labels, exact)",
                "weights = (labels >= 0).to(exact) / (labels >= 0).sum().clamp(min=1)",
            ),
        ),
        (
            "tests/trainer_image/models/test_output_head.py::test_losses_and_gradients_are_those_of_the_whole_logits",
            "tests/trainer_image/models/test_output_head.py::test_record_with_nan_changes_no_other_gradient",
        ),
    ),
    Mutation(
        "the loss is the mean over the batch's labelled words instead of each record's",
        (
            Edit(
                TRAINER + "models/losses.py",
                "return _mean_token_losses(logits, labels)\n",
                "share = (labels != IGNORE_INDEX).sum(dim=1) / (labels != IGNORE_INDEX).sum().clamp(min=1)\n"
                "    return _mean_token_losses(logits, labels) * share\n",
            ),
        ),
        (
            "tests/trainer_image/models/test_losses.py::test_tag_loss_depends_on_no_other_record",
            "tests/trainer_image/models/test_record_independence.py::test_no_bit_depends_on_slot_other_records_or_padding",
        ),
    ),
    Mutation(
        "a quantised layer rounds its inputs on a scale of the whole batch",
        (
            Edit(
                TRAINER + "models/quantized.py",
                "return functional.linear(input, decode(codes, scales), bias)",
                "scale = input.abs().amax().clamp(min=1e-6) / 127\n"
                "        return functional.linear((input / scale).round() * scale, decode(codes, scales), bias)",
            ),
        ),
        (
            MODEL_TESTS + "test_quantized.py::test_self_test_passes_bit_equal",
            MODEL_TESTS + "test_quantized.py::test_output_and_gradient_are_those_of_the_same_numbers",
        ),
    ),
    Mutation(
        "gradients that differ by rounding are accepted",
        (Edit(_BIT_EQUALITY, "if report.bit_equal:", "if report.neighbour_error < 5e-2:"),),
        (
            MODEL_TESTS + "test_bit_equality.py::test_kernel_that_rounds_by_slot_computes_one_record_at_a_time",
            TRAINING_TESTS + "test_inexact_kernels.py::test_kernel_that_rounds_by_slot_trains_one_record_at_a_time",
        ),
    ),
    Mutation(
        "a shape whose vector loops leave an end counts as bit-equal",
        (
            Edit(
                _SELF_TEST,
                "return self.neighbour_error == 0.0 and not self.uneven",
                "return self.neighbour_error == 0.0",
            ),
        ),
        (
            MODEL_TESTS
            + "test_simd_remainder.py::test_self_test_names_the_operation_and_does_not_call_the_shape_bit_equal",
        ),
    ),
    Mutation(
        "the parts of the threads may leave the end of a vector loop",
        (Edit(_VECTOR_TAILS, "for count in {1, parts}", "for count in {1}"),),
        (MODEL_TESTS + "test_simd_remainder.py::test_equal_numbers_give_equal_results_in_even_shapes_alone",),
    ),
    Mutation(
        "vector loops are taken to be shorter than they are",
        (Edit(_VECTOR_TAILS, "STEP_BYTES = 128", "STEP_BYTES = 16"),),
        (MODEL_TESTS + "test_simd_remainder.py::test_equal_numbers_give_equal_results_in_even_shapes_alone",),
    ),
    Mutation(
        "the gradient of GELU is taken to be split among threads as GELU is",
        (Edit(_VECTOR_TAILS, 'name in ("aten::gelu", "aten::gelu_")', 'name.startswith("aten::gelu")'),),
        (MODEL_TESTS + "test_simd_remainder.py::test_equal_numbers_give_equal_results_in_even_shapes_alone",),
    ),
    Mutation(
        "products of complex numbers count as exact",
        (Edit(_VECTOR_TAILS, "    if of_complex:", "    if False:"),),
        (MODEL_TESTS + "test_simd_remainder.py::test_products_of_complex_numbers_may_round",),
    ),
    Mutation(
        "the reciprocal root of a 16-bit number counts as exact",
        (Edit(_VECTOR_TAILS, "bool(args[0].dtype == torch.float32)", "True"),),
        (MODEL_TESTS + "test_simd_remainder.py::test_reciprocal_root_is_exact_in_fp32_alone",),
    ),
    Mutation(
        "the self-test forgets an uneven operation of another length",
        (Edit(_SET_UP, 'if report.uneven), "")', 'if False), "")'),),
        (TRAINING_TESTS + "test_step_components.py::test_self_test_reports_the_largest_error_of_all_lengths",),
    ),
    Mutation(
        "the matrix library may choose kernels by the address of a matrix",
        (Edit(_MATRIX_LIBRARY, "os.environ.update(ENVIRONMENT)", "pass"),),
        (MODEL_TESTS + "test_matrix_library.py::test_setting_before_the_first_product_is_used",),
    ),
    Mutation(
        "a setting of the matrix library that came too late is believed",
        (Edit(_MATRIX_LIBRARY, "!= _OFF", "!= 0"),),
        (MODEL_TESTS + "test_matrix_library.py::test_setting_after_a_product_comes_too_late",),
    ),
    Mutation(
        "a run starts although the matrix library has no setting",
        (Edit(_BIT_EQUALITY, "if not matrix_library", "if False and not matrix_library"),),
        (MODEL_TESTS + "test_matrix_library.py::test_run_on_a_cpu_is_refused_where_the_setting_came_too_late",),
    ),
    Mutation(
        "a run starts although OpenMP may use fewer threads",
        (Edit(_BIT_EQUALITY, "if variable := openmp.setting_of_fewer_threads():", "if variable := False:"),),
        (MODEL_TESTS + "test_openmp.py::test_run_on_a_cpu_is_refused_where_openmp_may_start_fewer_threads",),
    ),
    Mutation(
        "OpenMP may choose the number of threads by the load",
        (Edit(_OPENMP, "    if may_choose:\n", "    if False:\n"),),
        (MODEL_TESTS + "test_openmp.py::test_run_on_a_cpu_is_refused_where_openmp_may_start_fewer_threads",),
    ),
    Mutation(
        "OpenMP may have a limit below torch's threads",
        (Edit(_OPENMP, "limit < torch.get_num_threads()", "limit < 1"),),
        (MODEL_TESTS + "test_openmp.py::test_variable_of_the_environment_is_named",),
    ),
    Mutation(
        "OpenMP may start no threads at all",
        (Edit(_OPENMP, "levels < 1", "levels < 0"),),
        (MODEL_TESTS + "test_openmp.py::test_variable_of_the_environment_is_named",),
    ),
    Mutation(
        "workers give the matrix library no setting",
        (Edit(_BIT_EQUALITY, "    matrix_library.use_reproducible_products()\n", ""),),
        (MODEL_TESTS + "test_matrix_library.py::test_worker_sets_it_with_the_other_deterministic_kernels",),
    ),
    Mutation(
        "steps compute more records at once than the self-test found to be exact",
        (
            Edit(
                _SET_UP,
                "micro_batch_size=at_once,",
                "micro_batch_size=spec.training.micro_batch_size,",
            ),
        ),
        (TRAINING_TESTS + "test_inexact_kernels.py::test_kernel_that_rounds_by_slot_trains_one_record_at_a_time",),
    ),
    Mutation(
        "only rank 0 tests its kernels",
        (
            Edit(
                _SET_UP,
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device))",
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device) if rank == 0 else (None, "
                "PerExampleGradients(loaded.model, trainable_parameters(loaded.model), "
                "record_loss(loaded.task, None)), 1))",
            ),
        ),
        (TRAINING_TESTS + "test_inexact_kernels.py::test_inexact_kernel_on_one_rank_ends_the_attempt_on_all",),
    ),
    Mutation(
        "only the first attempt tests its kernels",
        (
            Edit(
                _SET_UP,
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device))",
                "on_all_ranks(lambda: _test_gradients(loaded, sharding, device) if config.attempt == 1 else (None, "
                "PerExampleGradients(loaded.model, trainable_parameters(loaded.model), "
                "record_loss(loaded.task, None)), 1))",
            ),
        ),
        (
            TRAINING_TESTS
            + "test_inexact_kernels.py::test_later_attempt_on_a_machine_with_an_inexact_kernel_charges_nothing",
        ),
    ),
    Mutation(
        "a byte latent transformer is not refused",
        (Edit(TRAINER + "models/unsupported.py", 'if part.model_type == "blt":', "if False:"),),
        (MODEL_TESTS + "test_load.py::test_models_that_mix_records_are_refused",),
    ),
    Mutation(
        "a model whose shapes depend on values is not refused",
        (Edit(_SELF_TEST, "end_with(_shape_fault(model, gradients, first))", "pass"),),
        (MODEL_TESTS + "test_self_test.py::test_finds_and_names_shapes_that_depend_on_values",),
    ),
    Mutation(
        "the self-test compares gradients and not the integers that are added up",
        (Edit(_SELF_TEST, "if worst == 0.0 and not", "if False and not"),),
        (MODEL_TESTS + "test_self_test.py::test_finds_integers_that_depend_on_the_slot_although_gradients_do_not",),
    ),
    Mutation(
        "the rows of a linear layer may be other things than records",
        (Edit(TRAINER + "privacy/gradients.py", "self._check_rows(name, (inputs, outputs))", "pass"),),
        (PRIVACY_TESTS + "test_gradients.py::test_layer_with_some_rows_that_are_not_records_is_refused",),
    ),
    Mutation(
        "the rows of a layer with Opacus' hooks may be other things than records",
        (
            Edit(
                TRAINER + "privacy/gradients.py",
                "self._check_rows(self._names[module], (*activations, backprops))",
                "pass",
            ),
        ),
        (
            PRIVACY_TESTS + "test_gradients.py::test_layer_with_some_rows_that_are_not_records_is_refused",
            PRIVACY_TESTS + "test_gradients.py::test_layer_whose_rows_are_not_records_is_refused",
        ),
    ),
    Mutation(
        "the gradients of a linear layer mix records",
        (
            Edit(
                TRAINER + "privacy/record_linear.py",
                "return torch.bmm(outputs.transpose(1, 2), inputs)",
                "return torch.bmm(outputs.transpose(1, 2), inputs.roll(1, 0))",
            ),
        ),
        (PRIVACY_TESTS + "test_record_linear.py::test_gradients_are_those_of_each_record_alone",),
    ),
    Mutation(
        "a gradient that is left from a failed pass is added to the next one",
        (
            Edit(
                TRAINER + "privacy/gradients.py",
                'if hasattr(parameter, "_current_grad_sample"):',
                'if hasattr(parameter, "_any_grad_sample"):',
            ),
        ),
        (PRIVACY_TESTS + "test_gradients.py::test_gradient_of_a_failed_pass_is_not_added_to_the_next",),
    ),
)
