"""What crosses the bus against FSDP2's own copies, DeepSpeed's own source and hand counts; time against two threads."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from minigpt.memory import TrainingPlan
from minigpt.memory.gpus import GPUS
from minigpt.memory.measured.offloading import measure_offload
from minigpt.memory.predicted.flops import flops
from minigpt.memory.predicted.offload import MFU, UPDATE, least_batch, paged, shard_of, traffic, utilisation
from minigpt.model import GPT, GPTConfig
from tools.models import MODELS

LLAMA = MODELS["llama-grouped"]
FSDP2 = dict(sharding="fsdp2", shard_offload="parameters")


def per_parameter(model, plan: TrainingPlan) -> list[tuple[str, str, float]]:
    """(phase, way, bytes for each number that the rank holds), in order."""
    shard = shard_of(model, plan)
    assert shard.numel == shard.trained
    return [(c.phase, "up" if c.up else "down", round(c.nbytes / shard.numel, 1)) for c in traffic(model, plan)]


@pytest.fixture
def ranks():
    """A process group of three ranks in one process: collectives do nothing, and sizes are right."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    yield 3
    torch.distributed.destroy_process_group()


def copies(monkeypatch, model, batch, passes: int) -> tuple[int, int]:
    """Bytes that FSDP2 hands to ``.to(device)`` before it gathers, and to ``.to("cpu")`` after it has reduced."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    gathered = []
    inputs = _fsdp_param.FSDPParam.all_gather_inputs

    def noted(param):
        if param.offload_to_cpu and param.sharded_state == _fsdp_param.ShardedState.SHARDED:
            gathered.append(param._sharded_param_data.nbytes)
        return inputs.fget(param)

    monkeypatch.setattr(_fsdp_param.FSDPParam, "all_gather_inputs", property(noted))
    down = 0
    for _ in range(passes):
        model(*batch).backward()
        down += sum(p.grad._local_tensor.nbytes for p in model.parameters() if p.grad is not None)
    return sum(gathered), down


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_fsdp2_copies_what_is_predicted(monkeypatch, ranks, reshard, dtype, precision):
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    config = GPTConfig(vocab_size=61, context=16, n_layer=3, n_head=2, n_embd=20)
    model = GPT(config).to(dtype)
    mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
    policy = dict(mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=reshard, **policy)
    fully_shard(model, **policy)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    up, down = copies(monkeypatch, model, (tokens, tokens), passes=2)
    more = dict(ranks=ranks, reshard_after_forward=reshard, precision=precision)
    plan = TrainingPlan(seq_len=8, accumulation=2, **FSDP2, **more)
    crossings = traffic(config, plan)
    assert up == sum(c.nbytes for c in crossings if c.up) > 0
    assert down == sum(c.nbytes for c in crossings if not c.up) > 0


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (dict(sharding="zero1", shard_offload="optimizer"), [("backward", "down", 4), ("step", "up", 2)]),
        (dict(sharding="zero2", shard_offload="optimizer"), [("backward", "down", 4), ("step", "up", 2)]),
        (
            dict(sharding="zero3", shard_offload="optimizer"),
            [("backward", "down", 2), ("backward", "up", 2), ("backward", "down", 4), ("step", "up", 2)],
        ),
        (
            dict(sharding="zero3", shard_offload="parameters"),
            [("forward", "up", 2), ("backward", "up", 2), ("backward", "down", 2), ("backward", "up", 2),
             ("backward", "down", 4)],
        ),
        (
            dict(sharding="zero2", shard_offload="optimizer", accumulation=3),
            [("backward", "down", 6), ("backward", "up", 4), ("backward", "down", 4), ("step", "up", 2)],
        ),
        (
            dict(sharding="zero2", shard_offload="optimizer", accumulation=3, precision="bf16-master-grad32"),
            [("backward", "down", 4), ("step", "up", 2)],
        ),
        (dict(**FSDP2, precision="bf16"), [("forward", "up", 2), ("backward", "up", 2), ("backward", "down", 2)]),
    ],
    ids=str,
)  # fmt: skip
def test_bytes_per_parameter_of_each_recipe(plan, expected):
    """The docstring's table; of FSDP2's second gathering the embedding and the head have no part."""
    found = per_parameter(MODELS["llama-grouped"], TrainingPlan(ranks=2, **{"precision": "bf16-master", **plan}))
    if plan["sharding"] == "fsdp2":
        assert found[1][2] < expected[1][2]
        found[1] = expected[1]
    assert found == expected


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: its source cannot be read")
def test_deepspeeds_source_has_the_copies():
    zero = Path(find_spec("deepspeed").origin).parent / "runtime" / "zero"
    one_two, three = (" ".join((zero / name).read_text().split()) for name in ("stage_1_and_2.py", "stage3.py"))
    assert "src_tensor = src_tensor.to(self.master_weights_and_grads_dtype)" in one_two
    assert "bit16_partitions[partition_id].data.copy_(bit16_partition_buffer.data, non_blocking=True)" in one_two
    assert "grad_buffer.copy_(grad_partition, non_blocking=True)" in three
    assert "grad_buffer = grad_buffer.to(grad_partition.device, non_blocking=True)" in three
    assert "fp32_grad_tensor.copy_(grad_buffer.to(dtype=self.master_weights_and_grads_dtype)" in three


def test_with_adapters_the_base_moves_and_its_gradients_do_not():
    plan = TrainingPlan(method="lora", targets="q,v", precision="bf16", ranks=2, **FSDP2)
    shard = shard_of(LLAMA, plan)
    up, again, down = (c.nbytes for c in traffic(LLAMA, plan))
    assert up == shard.nbytes == 2 * (shard.numel - shard.trained) + 4 * shard.trained
    assert down == 4 * shard.trained < again < up
    zero2 = TrainingPlan(method="lora", targets="q,v", ranks=2, sharding="zero2", shard_offload="optimizer")
    assert {c.nbytes for c in traffic(LLAMA, zero2)} == {4 * shard_of(LLAMA, zero2).trained}


def test_without_offload_nothing_crosses():
    plan = TrainingPlan(sharding="zero2", ranks=2, card="T4")
    assert traffic(LLAMA, plan) == () and utilisation(LLAMA, plan, host=1.0).share == 1


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (dict(method="qlora", ranks=2, **FSDP2), "method is 'qlora'; what a 4-bit base moves"),
        (
            dict(precision="bf16", ranks=2, sharding="zero2", shard_offload="optimizer"),
            "precision is 'bf16' with shard",
        ),
    ],
)
def test_a_recipe_that_nobody_has_is_named(plan, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        traffic(LLAMA, TrainingPlan(**plan))


def test_a_paged_state_goes_and_comes_at_most_once():
    model = {**LLAMA, "vocab_size": 4000, "hidden_size": 32}
    numel = 2 * 4000 * 32  # embedding and head; every other tensor is smaller than a page's least
    for name, nbytes in dict(paged_adamw=8, paged_adamw8bit=2, paged_lion=4, paged_lion8bit=1).items():
        assert [c.nbytes for c in paged(model, TrainingPlan(optimizer=name))] == [nbytes * numel] * 2
    source = Path(find_spec("bitsandbytes").origin).parent / "optim" / "optimizer.py"
    assert "if not self.is_paged or p.numel() < 1e5:" in source.read_text()
    with pytest.raises(ValueError, match="optimizer is 'adamw'; allowed: paged_adamw"):
        paged(model, TrainingPlan())


def test_time_is_the_formulas():
    """Phase by phase, by hand."""
    plan = TrainingPlan(batch=2, seq_len=64, precision="bf16-master", ranks=2, card="A100 80GB", sharding="zero3",
                        shard_offload="parameters")  # fmt: skip
    work, n = flops(LLAMA, TrainingPlan(batch=2, seq_len=64, precision="bf16-master")), shard_of(LLAMA, plan).numel
    bus, host, rate = 1e9, 5e9, 0.25 * 312e12
    found = utilisation(LLAMA, plan, mfu=0.25, bus=bus, host=host)
    assert found.forward == pytest.approx(work.forward / rate) and found.compute == pytest.approx(work.total / rate)
    exposed = 2 * n / bus - found.forward + 6 * n / bus - found.backward + UPDATE * 4 * n / host
    assert found.exposed == pytest.approx(exposed, rel=1e-3)
    assert found.share == pytest.approx(found.compute / (found.compute + found.exposed))
    assert utilisation(LLAMA, plan, bus=1e30).share == pytest.approx(1)


def test_the_crossover_is_where_the_hand_says():
    """tokens = u b mfu speed / (6 W bus): to 15%, which attention, the head and the way back through the bus are."""
    plan = TrainingPlan(seq_len=128, precision="bf16", card="A100 80GB", ranks=2, **FSDP2)
    gpu, share = GPUS["A100 80GB"], 0.3
    by_hand = share * 4 * MFU * gpu.half / (6 * 2 * gpu.bus)  # 4 bytes up; 2 go down at the same time
    batch = least_batch("llama-2-7b", plan, share)
    assert batch * 128 == pytest.approx(by_hand, rel=0.15)
    assert utilisation("llama-2-7b", replace(plan, batch=batch)).share >= share
    assert utilisation("llama-2-7b", replace(plan, batch=batch - 1)).share < share
    assert least_batch("llama-2-7b", replace(plan, ranks=4), share) == pytest.approx(batch / 2, abs=1)


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (dict(), {}, "card is None; time needs one"),
        (dict(card="T4"), dict(mfu=0), "mfu is 0; it must be greater than 0"),
        (dict(card="T4"), dict(bus=-1.0), "bus is -1.0; it must be greater than 0"),
        (dict(card="T4"), dict(share=1), "share is 1; a step with transfers never reaches it"),
        (dict(card="T4"), dict(share=0.9, bus=1e-300), "share is 0.9; no batch under"),
    ],
)
def test_what_time_cannot_be_counted_of_is_named(plan, options, message):
    plan = TrainingPlan(ranks=2, **FSDP2, **plan)
    with pytest.raises(ValueError, match=re.escape(message)):
        least_batch(LLAMA, plan, **options) if "share" in options else utilisation(LLAMA, plan, **options)


@pytest.mark.slow
def test_two_threads_show_the_shape():
    """Within 0.15 of products / max(products, transfers) for each number of rows, where the computer has the time."""
    for _attempt in range(6):
        busy = measure_offload(rows=(32, 128, 768))
        apart = [abs(b.utilisation - b.compute / max(b.compute, b.transfer)) for b in busy]
        if max(apart) < 0.15 and busy[0].utilisation < 0.3 < 0.75 < busy[-1].utilisation:
            return
    pytest.fail(f"{busy}: {apart}")
