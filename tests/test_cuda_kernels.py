"""What CUDA's kernels ask for beside their results, against what GPUs were seen to ask for.

The numbers come from recordings of torch's allocator in public forks of stanford-cs336/assignment2-systems (MIT),
named at each; their shapes from the scripts beside them.
"""

from __future__ import annotations

import pytest

from minigpt.memory import TrainingPlan, predict
from minigpt.memory.engine import einsum, ops, views
from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.engine.tape import Leaf, Tape
from minigpt.memory.predicted.cuda import CudaKernels, sort_bytes
from minigpt.memory.predicted.reduce import scratch
from minigpt.memory.predicted.run import run

WORKSPACE = 8_519_680
MANY = dict(processors=108, threads=2048)  # an A100's


@pytest.mark.parametrize(
    ("shape", "kept", "expected"),
    [
        ((4, 512, 2560), (2,), (41_943_040, 80)),  # LINYUNLinYun xl_ctx512_full_step: a norm's weight
        ((4, 1024, 1024), (2,), (33_554_432, 32)),  # Wedsonlin medium_1024_training: the same
        ((10, 200, 512), (2,), (8_388_608, 16)),  # NiuHuangxiaozi forward_and_backward_200: the same
        ((10, 100, 512), (2,), (0, 0)),  # NiuHuangxiaozi forward_and_backward_100: too few rows
        ((8, 4096, 16), (), (256, 4)),  # silmont2000 mem_snapshot: the sum of all
        ((10, 10000), (), (0, 0)),  # NiuHuangxiaozi: the sum of a loss
        ((4, 512, 2560), (0, 1), (0, 0)),  # a mean along rows
        ((4, 128, 10000), (0, 1), (0, 0)),  # a maximum over logits
        ((1, 1), (0, 1), (0, 0)),
    ],
)
def test_the_scratch_of_reductions(shape, kept, expected):
    assert scratch(shape, None, kept, 4, **MANY) == expected


def test_a_small_card_divides_less():
    """With 4 multiprocessors of 16 blocks each, 20 groups leave 4 blocks for an output, not 32."""
    assert scratch((4, 512, 2560), None, (2,), 4, processors=4, threads=2048) == (2560 * 4 * 4 * 128, 80)


@pytest.mark.parametrize(("pairs", "rows", "expected"), [(2048, 10000, 1), (4096, 10000, 72_191)])
def test_the_scratch_of_sorting(pairs, rows, expected):
    """LINYUNLinYun xl_ctx512_full_step and Wedsonlin medium_1024_training: the gradient of the embedding."""
    assert sort_bytes(pairs, rows - 1) == expected


def asked(tape: Tape) -> list[int]:
    """The sizes that were asked for, and as negatives those that were let go, in turn."""
    return [(1 if kind == BORN else -1) * record.nbytes for _, record, kind in tape.events if kind in (BORN, DEAD)]


def on_card() -> Tape:
    tape = Tape(cuda=True)
    tape.kernels, tape.phase = CudaKernels(WORKSPACE, 108), "forward"
    return tape


def test_a_workspace_for_each_thread_after_its_first_result():
    tape = on_card()
    x, weight = tape.new((8, 16), "float32"), tape.new((32, 16), "float32")
    x.source, weight.source = Leaf(), Leaf()
    once = ops.linear(x, weight)
    twice = ops.linear(x, weight)
    assert asked(tape)[2:] == [once.nbytes, WORKSPACE, twice.nbytes]
    tape.phase = "backward"
    tape.backward(ops.add(once, twice))
    assert asked(tape).count(WORKSPACE) == 2


def test_a_bias_has_a_workspace_of_its_own():
    """HanFa small_FP32_seq_128_inference: 8,519,680 bytes at a product, 1,048,576 at the first one with a bias."""
    tape = on_card()
    x, weight, bias = (tape.new(shape, "float32") for shape in ((8, 16), (32, 16), (32,)))
    weight.source = Leaf()
    ops.linear(x, weight)
    kept = [ops.linear(x, weight, bias) for _ in range(2)]
    made = asked(tape)[3:]
    assert made == [8 * 32 * 4, WORKSPACE, -8 * 32 * 4, kept[0].nbytes, 1_048_576, kept[1].nbytes]


def test_a_gradient_that_is_one_number_is_copied_for_a_product():
    """silmont2000 mem_snapshot: the sum of attention's output (8, 4096, 16); requests 17 to 22 of its 36."""
    tape = on_card()
    weights, v = tape.new((8, 4096, 4096), "float32"), tape.new((8, 4096, 16), "float32")
    weights.source, v.source = Leaf(), Leaf()
    out = einsum.weighted(weights, v)
    tape.phase = "backward"
    gradient = views.expanded(views.reshaped(tape.new((), "float32"), (1, 1, 1)), out.shape)
    began = len(tape.events)
    tape.backward_from((out,), [gradient])
    small, large = 8 * 4096 * 16 * 4, 8 * 4096 * 4096 * 4
    made = [nbytes for _, record, kind in tape.events[began:] if kind == BORN for nbytes in [record.nbytes]]
    assert made == [small, small, WORKSPACE, large, small]


def test_rows_are_sorted_before_they_are_added():
    """LINYUNLinYun xl_ctx512_full_step, requests 4704 to 4710: zeros, then the numbers of 2,048 rows."""
    tape = on_card()
    table, tokens = tape.new((10000, 64), "float32"), tape.new((4, 512), "int64")
    table.source = Leaf()
    rows = ops.rows_by_index(tokens, table)
    began = len(asked(tape))
    tape.backward(rows)
    numbers = 4 * 512 * 8
    made = asked(tape)[began + 1 :]
    assert made[:8] == [table.nbytes, numbers, numbers, -numbers, numbers, numbers, numbers, 1]
    assert sorted(made[8:13]) == [-numbers] * 4 + [-1]


def test_a_cpu_asks_for_nothing_beside():
    plan = TrainingPlan(batch=2, seq_len=16)
    config = dict(model_type="llama", hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=64,
                  intermediate_size=64)  # fmt: skip

    class Noted(Tape):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            assert type(self.kernels).__name__ == "Kernels"

    assert run(config, plan, lambda tape, frozen: tape.result(frozen), Noted) == predict(config, plan)


def made_backward(card: CudaKernels, make) -> list[int]:
    """What the backward of ``make(tape)`` asks for, and as negatives lets go."""
    tape = Tape(cuda=True)
    tape.kernels, tape.phase = card, "forward"
    out = make(tape)
    tape.phase = "backward"
    gradient = tape.new(out.shape, out.dtype)
    began = len(asked(tape))
    tape.backward_from((out,), [gradient])
    return asked(tape)[began:]


@pytest.mark.parametrize(("picks", "vocab"), [(3072, 500), (3073, 500), (4096, 10_000)])
def test_many_picks_are_sorted_for_the_gradient_of_an_embedding(picks, vocab):
    """embedding_dense_backward_cuda and embedding_backward_cuda_kernel, by hand. The sort's own: eight passes of 256
    counts of 8 bytes; what blocks of 3,840 look back at; both copies; a counter for each pass; 255 to align."""

    def make(tape):
        table, tokens = tape.new((vocab, 64), "float16"), tape.new((1, picks), "int64")
        table.source = Leaf()
        return ops.embedding(tokens, table)

    made = made_backward(CudaKernels(WORKSPACE, 108), make)
    table, n = vocab * 64 * 2, 8 * picks
    if picks == 3072:
        assert made[0] == table and all(nbytes < 0 for nbytes in made[1:])
        return
    up = [-(-size // 256) * 256 for size in (8 * 256 * 8, -(-picks // 3840) * 256 * 4, n, n, 8 * 4)]
    sort = sum(up) + 255
    tokens = min(picks, vocab)
    parts = picks // 10 + tokens
    assert made[:6] == [n, n, n, sort, -sort, -n]
    assert made[6:15] == [table, n, 8, 8 * tokens, 8 * tokens, 8, 8 * parts, 4 * 64 * parts, -4 * 64 * parts]


@pytest.mark.parametrize(("rows", "columns", "parts"), [(65_536, 768, 0), (65_568, 768, 1365), (65_568, 2112, 0)])
def test_very_many_rows_are_summed_in_parts_for_a_layer_norm(rows, columns, parts):
    """LaunchGammaBetaBackwardCUDAKernel, by hand, for 132 processors: 24 blocks of 32 columns leave 32,768 / 24 in y;
    66 blocks are half of the processors."""

    def make(tape):
        values = [tape.new(shape, "float32") for shape in ((rows, columns), (columns,), (columns,))]
        for value in values:
            value.source = Leaf()
        return ops.layer_norm(*values)

    made = made_backward(CudaKernels(WORKSPACE, 132), make)
    block, row = 4 * columns * parts, 4 * columns
    assert made[:3] == [4 * rows * columns, row, row]
    if parts:
        assert made[3:6] == [block, block, row] and made.count(row) == 4
    else:
        assert all(nbytes < 0 for nbytes in made[3:])


FOUR_BITS = dict(model_type="llama", hidden_size=1024, num_hidden_layers=1, num_attention_heads=8, vocab_size=64,
                 intermediate_size=4096)  # fmt: skip


@pytest.mark.parametrize(("tokens", "card", "whole"), [(4, "T4", 0), (65, "T4", 7), (20, "RTX 4090", 3)])
def test_few_rows_need_no_whole_w(tokens, card, whole):
    """Forward, of a model that is not checkpointed: 4 rows are always fused; on a T4 65 are too many for its small
    matrices and its large ones; on an RTX 4090 20 are few for 1024 x 1024 (up to 23), and many for an MLP's (8 and 12).
    """
    plan = TrainingPlan(method="qlora", precision="fp16", seq_len=tokens, card=card, double_quantization=False)
    found = run(FOUR_BITS, plan, lambda tape, frozen: [
        record for phase, record, kind in tape.events
        if kind == BORN and phase == "forward" and record.born[2] == "dequantize"
    ])  # fmt: skip
    assert len(found) == whole


def test_a_whole_w_is_made_in_the_products_own_precision():
    """_dequant_linear_fallback: the scales, their sum with the offset, W in the input's 16 bits; all there at once."""
    plan = TrainingPlan(method="qlora", precision="bf16", seq_len=600, card="A100 80GB")
    found = run(FOUR_BITS, plan, lambda tape, frozen: [
        record.nbytes for phase, record, kind in tape.events
        if kind == BORN and phase == "forward" and record.born[2] == "dequantize"
    ])  # fmt: skip
    assert found[:3] == [1024 * 1024 // 64 * 4] * 2 + [1024 * 1024 * 2]
