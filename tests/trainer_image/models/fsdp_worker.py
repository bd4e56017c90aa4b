"""The workers of `test_fsdp.py`: per-example gradients of a quantised model whose layers FSDP2 shards.

They are forked from one process, because imports take the longest time. Each worker writes to a file, for each setting:
its gradients before and after its layers are sharded, and the bytes of the layers' frozen parameters that it holds.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from tensorguard.data.rows import TokenRows
from tensorguard.models.dropout import record_seeds
from tensorguard.models.load import PRECISIONS, checkpoint_activations, prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.losses import record_loss
from tensorguard.models.self_test import dummy_batches
from tensorguard.models.tasks import task_named
from tensorguard.privacy.gradients import PerExampleGradients

ROWS, LENGTH, WORDS = 4, 16, 97
SETTINGS = (("NF4", "fp32", False), ("INT8", "bf16", False), ("NF4", "bf16", True))
"""Scheme, precision, and whether activations are recomputed."""


def work(rendezvous: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=300)
    )
    torch.save([measure(rank, size, *setting) for setting in SETTINGS], f"{rendezvous}-{rank}")
    dist.barrier()
    dist.destroy_process_group()


def measure(rank: int, size: int, scheme: str, precision: str, checkpointing: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 66, "num_hidden_layers": 2, "num_attention_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **shape))
    task = task_named("CausalLM")
    base = prepare_base(llama.to(PRECISIONS[precision]), task, pad_token_id=0, quantization=scheme)
    targets = ["q_proj", "v_proj", "down_proj"]
    model = attach_lora(base, rank=4, alpha=8, dropout=0.1, init_seed=7, target_modules=targets)
    if checkpointing:
        checkpoint_activations(base.model)
    with torch.no_grad():
        for _, parameter in trainable_parameters(model):
            parameter.add_(torch.randn(parameter.shape), alpha=0.05)
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(task))
    batch = dummy_batches(task, TokenRows(LENGTH, 0, WORDS), rows=ROWS, length=LENGTH)(rank)

    def rows() -> torch.Tensor:
        with record_seeds(model, range(ROWS)):
            return gradients.compute(batch, ROWS).clone()

    whole, whole_bytes = rows(), held(base.model.model.layers)
    lora = {parameter for _, parameter in trainable_parameters(model)}
    for layer in base.model.model.layers:
        mesh = init_device_mesh("cpu", (size,))
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=lora)
    shards = [rows(), rows()]
    return {"whole": whole, "shards": shards, "bytes": (whole_bytes, held(base.model.model.layers))}


def held(layers: nn.Module) -> int:
    """The bytes of the frozen parameters that this worker holds."""
    frozen = (parameter for parameter in layers.parameters() if not parameter.requires_grad)
    return sum((each.to_local() if isinstance(each, DTensor) else each).nbytes for each in frozen)


def main(rendezvous: str, size: int) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work, args=(rendezvous, rank, size)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
