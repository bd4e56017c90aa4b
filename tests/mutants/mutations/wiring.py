"""Mistakes in how a run is put together from its parts, each of which is correct by itself."""

from __future__ import annotations

from mutations.mutation import TRAINER, TRAINING_TESTS, Edit, Mutation

_SETUP = TRAINER + "training/setup.py"
_WIRING = TRAINING_TESTS + "test_wiring.py::"
_SHARDED = TRAINING_TESTS + "test_sharded_base.py::"
_KEYS = (_WIRING + "test_every_purpose_of_every_rank_has_its_own_key",)

WIRING: tuple[Mutation, ...] = (
    Mutation(
        "a run samples at 1.2 q",
        (
            Edit(
                _SETUP,
                "PoissonSampler(len(shard), mechanism.sample_rate,",
                "PoissonSampler(len(shard), str(1.2 * float(mechanism.sample_rate)),",
            ),
        ),
        (_WIRING + "test_each_unit_joins_a_step_at_the_sampling_rate_of_the_ledger",),
    ),
    Mutation(
        "a run adds 0.9 of its noise",
        (Edit(_SETUP, "DiscreteGaussian(mechanism.share_sigma)", "DiscreteGaussian(0.9 * mechanism.share_sigma)"),),
        (_WIRING + "test_every_rank_adds_the_share_of_noise_of_the_ledger",),
    ),
    Mutation(
        "a run clips to 1.2 clip norms",
        (
            Edit(
                _SETUP,
                "gradients.dimension, mechanism.grid, float(mechanism.clip),",
                "gradients.dimension, round(1.2 * mechanism.grid), float(mechanism.clip),",
            ),
        ),
        (_WIRING + "test_clipped_sum_of_a_draw_is_one_clip_norm_of_the_ledgers_grid_for_each_unit",),
    ),
    Mutation(
        "a statement does not say that the base was quantised",
        (Edit(_SETUP, "    if spec.model.quantization:\n", "    if False:\n"),),
        (TRAINING_TESTS + "test_step_components.py::test_quantisation_of_the_base_is_part_of_its_identity",),
    ),
    Mutation(
        "a charge with a field of a newer release is read without it",
        (Edit("crds/tensafe_api/resources/ledger.py", "ChargeRecord(StrictStatusBlock)", "ChargeRecord(StatusBlock)"),),
        ("tests/trainer_image/ledger/test_kubernetes_object.py::test_claim_with_an_unknown_field_is_refused",),
    ),
    Mutation(
        "noise and sampling read the same key stream",
        (Edit(_SETUP, 'noise_stream=stream.derive("noise")', 'noise_stream=stream.derive("sampling")'),),
        _KEYS,
    ),
    Mutation(
        "rounding and dropout take their seeds from the stream of the sampling",
        (Edit(_SETUP, 'stream.derive("seeds")', 'stream.derive("sampling")'),),
        _KEYS,
    ),
    Mutation(
        "dropout and rounding have the same seeds",
        (
            Edit(
                TRAINER + "training/unit_gradients.py",
                "dropout, rounding = self._stream.keyed_seeds(), self._stream.keyed_seeds()",
                "dropout = rounding = self._stream.keyed_seeds()",
            ),
        ),
        _KEYS,
    ),
    Mutation(
        "a noise sampler is used although δ does not pay for its distance",
        (
            Edit(
                _SETUP,
                "noise_remarks=_check_noise_sampler(",
                "noise_remarks=(lambda *_: ())(",
            ),
        ),
        (TRAINING_TESTS + "test_noise_sampler_check.py::test_run_whose_sampler_is_not_precise_enough_spends_nothing",),
    ),
    Mutation(
        "a checkpoint is restored whatever its digest is",
        (
            Edit(
                TRAINER + "training/checkpointing.py",
                "read_decrypted(store, name, identities, expected)",
                "read_decrypted(store, name, identities)",
            ),
        ),
        (TRAINING_TESTS + "test_resume.py::test_checkpoint_that_was_rewritten_consistently_is_refused",),
    ),
    Mutation(
        "no worker masks",
        (
            Edit(
                TRAINER + "aggregation/pairwise_masks.py",
                "pairwise_mask(keys, self.channel.rank, step, dimension)",
                "pairwise_mask({}, self.channel.rank, step, dimension)",
            ),
        ),
        (
            _WIRING + "test_what_every_rank_hands_to_the_channel_is_uniform",
            _WIRING + "test_vectors_of_two_of_three_ranks_are_uniform_together",
        ),
    ),
    Mutation(
        "LoRA not ignored: the trained parameters are sharded with the base",
        (
            Edit(
                TRAINER + "models/sharded_base.py",
                "fully_shard(layer, mesh=self.mesh, ignored_params=kept)",
                "fully_shard(layer, mesh=self.mesh)",
            ),
        ),
        (_SHARDED + "test_workers_send_each_other_only_parts_of_the_frozen_weights",),
    ),
    Mutation(
        "dummies not padded: a worker with fewer records runs fewer passes of a shared base",
        (Edit(TRAINER + "training/unit_gradients.py", ", at_least=passes", ""),),
        (_SHARDED + "test_rank_without_a_record_takes_part_in_all_passes",),
    ),
    Mutation(
        "a failure of one rank meets the weights that the others gather",
        (
            Edit(
                TRAINER + "models/sharded_base.py",
                "group, _ = dist.new_subgroups(sharing, timeout=TIMEOUT)\n",
                "assert sharing == dist.get_world_size()\n        group = dist.distributed_c10d._get_default_group()\n",
            ),
        ),
        (_SHARDED + "test_rank_that_fails_alone_while_it_starts_leaves_no_rank_waiting",),
    ),
    Mutation(
        "workers that share a base try different numbers of records at once",
        (Edit(_SETUP, "    if sharding is None:\n        return own\n", "    return own\n"),),
        (_SHARDED + "test_kernel_that_is_inexact_on_one_rank_ends_the_attempt_on_all",),
    ),
)
