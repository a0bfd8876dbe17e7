"""The numbers in the prose of lesson 05. content/README.md says how it uses them."""

from minigpt.memory import Architecture, TrainingPlan, predict, predict_evaluation
from minigpt.memory.saved import saved_by_block
from minigpt.memory.units import gib

B, T, V = 16, 256, 50257  # nano with GPT-2's vocabulary
P = Architecture.of("llama-3-8b").parameters


def run(model="llama-7b", **changes):
    return predict(model, TrainingPlan(**{**dict(batch=1, seq_len=2048, precision="bf16"), **changes}))


def fused(**changes):
    return run("llama-3-8b", **{**dict(seq_len=1024, optimizer_loop="fused"), **changes}).peak.total


big, alone, accumulated = fused(batch=8), fused(), fused(accumulation=8)
assert accumulated == fused(accumulation=2) and alone < accumulated < big
crest = run("llama-3-8b", seq_len=1024, optimizer_loop="fused", accumulation=8).peak
assert abs(crest.total - 8 * P - crest.activations - crest.temporary) < 1e6 and abs(alone - 8 * P) < 1e-3 * alone

evaluated = TrainingPlan.like("hf-trainer", method="lora", batch=1, seq_len=1024, autocast=True, card="A100 80GB")
stays = predict_evaluation("llama-3-8b", evaluated, 100).ledger.persistent
logits_100 = 4 * 100 * 1024 * 128256

C7, I7 = 4096, 11008
folk_7b, real_7b = 32 * 2048 * C7 * 2, run().ledger.activations
low_folk, mid_folk = 32 / 2, (30 * 4096 + 4 * 1024 + 8 * 14336) / (2 * 4096)
assert low_folk < real_7b / folk_7b < mid_folk
eager_7b, fused_7b = run(attention="eager"), run()
eager_thin, fused_thin = (run(attention=kind, checkpointing="full") for kind in ("eager", "sdpa"))
assert eager_thin.peak == fused_thin.peak and fused_thin.peak_at.startswith("step")
lora = dict(seq_len=512, method="lora", autocast=True)
at_once, in_turn = run(batch=16, **lora), run(accumulation=16, **lora)
assert gib(4 * 11600 * 248320, 1) == "10.7 GiB"


def kept(model, **changes):
    plan = TrainingPlan(batch=2, seq_len=512, precision="bf16", **changes)
    return sum(row.counted for row in saved_by_block(model, plan)) // plan.tokens


gemma_by_hand, gemma_kept = 36 * 2304 + 4 * 2048 + 4 * 1024 + 8 * 9216, kept("gemma-2-2b")
gemma_numbers, gemma_ones = 4 * (4 + 8), 4 * 4 * 2304 // 1024  # 4 norms and 8 heads; 1 + w of each norm
high_folk = gemma_kept / (2 * 2304)
assert gemma_kept - gemma_by_hand == gemma_numbers + gemma_ones and 0 < kept("pythia-1b") - 36 * 2048 < 100
adapted = kept("llama-3-8b", method="lora", autocast=True, card="A100 80GB", rank=1)
assert 0 <= adapted - (25 * 4096 + 8 * 14336) < 0.01 * adapted
