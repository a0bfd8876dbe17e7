"""The numbers in the prose of lab 12. content/README.md says how it uses them."""

from minigpt.checks.sharding.keeping import KEPT, on_a_card, parts_of
from minigpt.memory import TrainingPlan, predict
from minigpt.model import GPTConfig

# Part 6: 70B on 8 cards, and the mark scheme of part 7.
block, rest, layers = parts_of("llama-2-70b")
kept70 = sum(on_a_card(block, rest, layers, 8)[name] for name in KEPT)
assert 137e9 < kept70 < 139e9 and 68e9 < sum(on_a_card(block, rest, layers, 16)[name] for name in KEPT) < 70e9

# Part 5: what is gathered and reduced takes much of what sharding saves, and less of it with more blocks.
size, shared = dict(batch=1, seq_len=64, precision="fp32", optimizer_loop="single"), dict(sharding="fsdp2", ranks=2)


def peak(config, **words):
    return predict(config, TrainingPlan(**size, **words)).peak.total


nano, deep = GPTConfig.preset("nano"), GPTConfig.preset("nano", n_layer=12)
saved = f"{1 - peak(nano, **shared) / peak(nano):.0%}"
assert 0.5 > 1 - peak(deep, **shared) / peak(deep) > 1 - peak(nano, **shared) / peak(nano)
