"""CUDA's fused attentions: the choice and its sizes, against headers in torch's wheel and by hand from the source.

Which kernels take grouped heads (cuDNN's and flash) stands in sdp_utils.cpp, which no wheel has; and
torch.backends.cuda.can_use_* say no to everything without CUDA. What the kernels' common header and transformers do can
be asked.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from minigpt.memory.engine.attention import attention
from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.engine.tape import Leaf, Tape, Value
from minigpt.memory.families.decoder import sdpa
from minigpt.memory.gpus import GPUS
from minigpt.memory.predicted.cuda import CudaKernels
from minigpt.memory.predicted.fused import CuDNN, Efficient, Flash, Tile, chosen, splits, tile, workspace_bytes

SOURCES = Path(torch.__file__).parent / "include/ATen/native/transformers"
KERNELS = SOURCES / "cuda/mem_eff_attention/kernels/cutlassB.h"
# Bytes of shared memory that a block may ask for: CUDA Programming Guide, by compute capability.
SHARED = {(7, 5): 65536, (8, 0): 166_912, (8, 6): 101_376, (8, 9): 101_376, (9, 0): 232_448, (12, 0): 101_376}
# sizeof(SharedStorage), as nvcc 13.0 has it of kernel_backward.h with CUTLASS 4.2: where not all fit.
NEEDED = {
    ("Sm75", "half_t", "128", "64"): 54_784, ("Sm80", "bfloat16_t", "128", "64"): 91_648,
    ("Sm80", "half_t", "128", "64"): 91_648, ("Sm80", "bfloat16_t", "128", "128"): 152_064,
    ("Sm80", "half_t", "128", "128"): 162_304, ("Sm80", "float", "128", "64"): 121_344,
    ("Sm80", "float", "64", "64"): 67_840,
}  # fmt: skip


def on_card(name: str) -> Tape:
    card = GPUS[name]
    tape = Tape(cuda=True)
    tape.kernels = CudaKernels(card.workspace, card.processors, card.threads, card.capability)
    tape.phase = "forward"
    return tape


def tensors(tape: Tape, dtype: str, B=2, H=8, K=8, T=200, D=64, E=None) -> list[Value]:
    made = [tape.new(shape, dtype) for shape in ((B, H, T, D), (B, K, T, D), (B, K, T, E or D))]
    for value in made:
        value.source = Leaf()
    return made


@pytest.mark.parametrize(
    ("card", "dtype", "given", "kernel"),
    [
        ("A100 80GB", "bfloat16", {}, Flash),
        ("A100 80GB", "bfloat16", dict(K=2), Flash),
        ("A100 80GB", "bfloat16", dict(masked=True), Efficient),
        ("A100 80GB", "float32", {}, Efficient),
        ("A100 80GB", "float32", dict(K=2), None),  # "both fused kernels require query, key and value to have the same"
        ("A100 80GB", "bfloat16", dict(D=192, E=128), Efficient),  # deepseek's
        ("A100 80GB", "float32", dict(D=6), None),  # no multiple of 4
        ("A100 80GB", "float16", dict(D=320), Efficient),
        ("RTX 4090", "float16", dict(D=256), Flash),
        ("RTX 4090", "float16", dict(D=256, dropout=0.1), Efficient),
        ("RTX 4090", "float16", dict(D=208), Efficient),
        ("H100 80GB", "bfloat16", dict(K=2), CuDNN),
        ("H100 80GB", "bfloat16", dict(masked=True), CuDNN),
        ("H100 80GB", "bfloat16", dict(dropout=0.1), Flash),  # no multiple of 1/16
        ("H100 80GB", "bfloat16", dict(D=256), Flash),
        ("H100 80GB", "float32", {}, Efficient),
        ("T4", "float16", {}, Efficient),
        ("T4", "float16", dict(K=2), None),
        ("T4", "bfloat16", {}, None),
        ("T4", "float32", dict(D=6), Efficient),
        ("T4", "float16", dict(D=6), None),
    ],
)
def test_which_kernel_torch_takes(card, dtype, given, kernel):
    """Read off sdp_utils.cpp's constraints, one by one."""
    masked, dropout = given.pop("masked", False), given.pop("dropout", 0.0)
    values = tensors(on_card(card), dtype, **given)
    found = chosen((GPUS[card].capability, GPUS[card].processors), *values, masked, dropout, True)
    assert type(found) is (kernel or type(None))


def test_a_kernel_that_knows_no_groups_takes_as_many_heads_of_keys():
    """The template in torch's wheel: groups only where the kernel supports them, else as many heads."""
    text = " ".join((SOURCES / "sdp_utils_cpp.h").read_text().split())
    rule = text[text.index("inline bool check_batch_size_and_num_heads_dense(") :]
    groups, same = rule.index("if(params.enable_gqa && supports_gqa){"), rule.index("if (!same_num_heads){")
    assert groups < same < rule.index("return false;", same) < rule.index("// If all checks pass, return true")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("D", "E"), [(64, 64), (256, 256), (320, 320)])
def test_transformers_repeats_heads_where_it_says_so(monkeypatch, masked, D, E):
    """transformers' own use_gqa_in_sdpa, beside how many heads of keys our attention is given."""
    asked = pytest.importorskip("transformers.integrations.sdpa_attention").use_gqa_in_sdpa
    grouped = asked(torch.ones(1) if masked else None, torch.empty(2, 2, 8, D), torch.empty(2, 2, 8, E))
    tape, given = on_card("T4"), []
    monkeypatch.setattr(type(tape.kernels), "fused", lambda _, q, k, *more: given.append(k.shape[1]))
    values = tensors(tape, "float32", K=2, T=8, D=D, E=E)
    sdpa(*values, tape.new((2, 1, 8, 8), "float32") if masked else None)
    assert given == [2 if grouped else 8]


@pytest.mark.parametrize("capability", SHARED, ids=str)
@pytest.mark.parametrize("dtype", ["half_t", "bfloat16_t", "float"])
@pytest.mark.parametrize("drops", [False, True])
def test_the_tile_is_the_first_kernel_that_fits(capability, dtype, drops):
    """The kernels of cutlassB.h in their order, as attention_backward.cu goes through them."""
    if (capability, dtype) == ((7, 5), "bfloat16_t"):
        return  # not taken at all
    arch, code = "Sm75" if capability < (8, 0) else "Sm80", 10 * capability[0] + capability[1]
    text = re.sub(r"cutlass::(arch::)?", "", KERNELS.read_text())
    calls = re.findall(r"(if \([^)]*\) )?cb\(AttentionBackwardKernel<(.*?)>\(\)", text)
    for width in (16, 32, 40, 64, 80, 96, 128, 160, 256):
        for condition, words in calls:
            its_arch, its_dtype, aligned, its_drops, _, I, J, most, *_ = words.split(", ")  # noqa: E741
            if (its_arch, its_dtype, aligned) != (arch, dtype, "true") or width > int(most):
                continue
            if (drops and its_drops != "true") or (condition and str(code) not in condition):
                continue
            wide = NEEDED.get((arch, dtype, I, J), 0) if int(most) > 64 and (dtype == "float" or int(most) < 129) else 0
            if wide <= SHARED[capability]:
                break
        registers = dtype == "float" or int(most) <= int(I)
        assert tile(capability, dtype != "float", width, drops) == Tile(int(I), int(J), registers), width


@pytest.mark.parametrize(("rows", "columns", "size"), [(64, 64, 16_400), (128, 64, 32_784), (128, 128, 65_552)])
def test_a_tile_takes_what_the_compiler_says(rows, columns, size):
    """sizeof(GradQTempStorage), printed by nvcc 13.0; one head of one tile."""
    assert workspace_bytes(Tile(rows, columns), 1, rows, rows, columns, columns) == size


def test_gradients_that_fit_in_no_registers_have_their_parts():
    """16 heads of 1,000 keys on a card of 99 KiB: min(16, 200 / 16) parts of 64 x 128 for keys, and for values."""
    numbers = 16 * 2 * (64 * 64 + 4) + 12 * 64 * (128 + 128)
    assert workspace_bytes(tile((8, 6), True, 128), 16, 1000, 1000, 128, 128) == 16 * numbers * 4


def asked(tape: Tape, began: int) -> list[int]:
    """The sizes that were asked for, and as negatives those that were let go, in turn."""
    return [(1 if kind == BORN else -1) * r.nbytes for _, r, kind in tape.events[began:] if kind in (BORN, DEAD)]


def step(card: str, dtype: str, **given) -> tuple[list[int], list[int]]:
    tape = on_card(card)
    values = tensors(tape, dtype, **given)
    began = len(tape.events)
    out = attention(*values)
    forward = asked(tape, began)
    tape.phase = "backward"
    gradient = tape.new(out.shape, out.dtype, out.strides)
    began = len(tape.events)
    tape.backward_from((out,), [gradient])
    return forward, asked(tape, began)


def test_what_flash_asks_for():
    """mha_fwd and mha_bwd, by hand: 2 sequences, 8 heads of 64 on 2, 200 tokens; a gradient that lies by heads."""
    q, kv, rows = 2 * 8 * 200 * 64 * 2, 2 * 2 * 200 * 64 * 2, 2 * 8 * 200 * 4
    forward, backward = step("A100 80GB", "bfloat16", K=2)
    assert forward == [q, rows, 16, 8]  # 200 keys are one block of 256: nothing to divide
    rounded = 2 * 8 * 256
    copies = [q, q]  # the gradient and the output as (B, T, H, D)
    assert backward[:9] == [*copies, q, kv, kv, rounded * 4, rounded * 64 * 4, q, q]


def test_flash_divides_long_keys_of_few_heads():
    """8 heads of 64 blocks of rows fill 108 processors' 216 slots; one head does not: 64 blocks, 16 columns, 3 parts
    would leave 192 of 216 busy, 0.89 of the best."""
    assert splits(8 * 64, 108, 4096, 64) == 1
    assert splits(64, 108, 4096, 64) == 3
    forward, _ = step("A100 80GB", "float16", B=1, H=1, K=1, T=4096)
    assert forward[2:4] == [3 * 4096 * 4, 3 * 4096 * 64 * 4]


def test_what_the_efficient_one_asks_for():
    """_efficient_attention_forward and _backward, by hand, on a T4: 4 blocks of 64 rows for each of 16 heads."""
    q, rows = 2 * 8 * 200 * 64 * 2, 2 * 8 * 200 * 4
    forward, backward = step("T4", "float16")
    assert forward == [q, 2 * 8 * 224 * 4]
    assert backward[:5] == [q, q, q, rows, 16 * 4 * 16_400]


def test_the_efficient_one_in_float32_multiplies_gradient_and_output_first():
    q, rows = 2 * 8 * 200 * 64 * 4, 2 * 8 * 200 * 4
    _, backward = step("A100 80GB", "float32")
    assert backward[:8] == [q, q, q, q, rows, rows, -q, -rows]


def test_a_mask_is_padded_to_eight():
    """preprocess_mask: 200 is a multiple of 8, 201 is not."""
    for T, padded in ((200, []), (201, [2 * 201 * 208 * 2])):
        tape = on_card("T4")
        values, mask = tensors(tape, "float16", T=T), tape.new((2, 1, T, T), "float16")
        began = len(tape.events)
        attention(*values, mask)
        assert asked(tape, began)[: len(padded) + 1] == [*padded, 2 * 8 * T * 64 * 2]


def test_heads_that_flash_cannot_take_are_padded():
    forward, _ = step("A100 80GB", "float16", D=12, T=64)
    assert forward[:4] == [2 * 8 * 64 * 16 * 2] * 4


def test_one_by_one_every_score_is_a_tensor():
    """And _safe_softmax looks for rows that are all masked: a bool for each score, one for each row."""
    forward, _ = step("T4", "float16", K=2)
    scores = 2 * 8 * 200 * 200
    assert forward.count(4 * scores) == 2 and scores in forward and scores // 200 in forward
