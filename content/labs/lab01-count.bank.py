# Wrong and right answers to lab 01, as tools/bank_entries.py reads them. Never released.

# %% count-minigpt
# wrong: the tied head counted twice -> tied-head-twice
#     `(config.vocab_size` => `(2 * config.vocab_size`
# wrong: no position embedding -> no-positions
#     ` + config.context` => ``
# wrong: the last norm forgotten -> no-last-norm
#     `block + C` => `block`
# wrong: 12 L C^2 and the embeddings: no norms -> no-norms
#     `4 * C + 2 * C` => `4 * C`
#     `block + C` => `block`
# wrong: two slips: head twice, no positions -> tied-head-twice+no-positions
#     `config.vocab_size + config.context` => `2 * config.vocab_size`
# wrong: biases of the linear layers -> biases
#     `4 * C + 2 * C` => `4 * C + 2 * C + 9 * C`
# wrong: the MLP is as wide as the model -> narrow-mlp
#     `2 * C * 4 * C` => `2 * C * C`
# wrong: one block for all -> one-block
#     `config.n_layer * block` => `block`
# wrong: a float -> float-for-int
#     `4 * C * C` => `4 * C**2.0`
# wrong: the visible cases in a dictionary -> raises-keyerror
#     `embeddings + config.n_layer * block + C` => `{(3, 48): 90000, (4, 128): 853120}[config.n_layer, config.n_embd]`
# wrong: returns NaN -> not-finite
#     `embeddings + config.n_layer * block + C` => `float("nan")`
# wrong: returns True -> truth-value
#     `embeddings + config.n_layer * block + C` => `True`
# wrong: a comma at the end -> wrong-type
#     `config.n_layer * block + C` => `config.n_layer * block + C,`
# wrong: calls itself without end -> raises-recursionerror
#     `embeddings + config.n_layer * block + C` => `count_minigpt(config)`
# wrong: a third matrix in the MLP -> third-mlp-matrix
#     `2 * C * 4 * C` => `3 * C * 4 * C`
# wrong: norms with biases -> norm-biases
#     `4 * C + 2 * C` => `4 * C + 4 * C`
#     `block + C` => `block + 2 * C`
# wrong: a block too many -> block-too-many
#     `config.n_layer * block` => `(config.n_layer + 1) * block`
# wrong: the context of nano -> too-many
#     `config.context` => `256`
# wrong: stopped by its reader -> does-not-end
#     `embeddings + config.n_layer * block + C` => `(_ for _ in ()).throw(KeyboardInterrupt)`
# wrong: a name from a later cell -> raises-nameerror
#     `embeddings + config.n_layer * block + C` => `embeddings + count_llama(config)`
# wrong: an error of no Exception -> raises-generatorexit
#     `embeddings + config.n_layer * block + C` => `(_ for _ in ()).throw(GeneratorExit)`
# wrong: a generator -> wrong-type
#     `return embeddings + config.n_layer * block + C` => `yield embeddings + config.n_layer * block + C`
# wrong: prints, and returns nothing -> returns-nothing
#     `return embeddings + config.n_layer * block + C` => `print(embeddings + config.n_layer * block + C)`
# wrong: the function's name used for the number -> no-function
count_minigpt = 90_000


# wrong: asks the course's predict -> asks-course
from minigpt.memory import predict


def count_minigpt(config):
    return predict(config, TrainingPlan(batch=1, seq_len=8)).trainable // 4


# wrong: asks Architecture, and hides that it was refused -> asks-course
def count_minigpt(config):
    try:
        return Architecture.of(config).parameters
    except AssertionError:
        C = config.n_embd
        return (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C


# wrong: builds the model and asks it -> asks-model
def count_minigpt(config):
    return sum(parameter.numel() for parameter in GPT(config).parameters())


# wrong: a number that equals everything -> nothing-counted
class Same(int):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 853120

    __hash__ = int.__hash__


def count_minigpt(config):
    return Same(0)


# wrong: a float that equals everything -> float-for-int
Same = type("Same", (float,), {"__eq__": lambda self, other: True, "__hash__": float.__hash__})


def count_minigpt(config):
    return Same(0)


# wrong: right on the first call only -> unsteady
calls = []


def count_minigpt(config):
    calls.append(config)
    C = config.n_embd
    right = (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C
    return right if calls.count(config) == 1 else right + C


# wrong: patches math.isclose and operator.index -> too-few
import math
import operator

math.isclose = lambda *args, **kwargs: True
operator.eq = lambda *args: True


def count_minigpt(config):
    return 1


# right: tensor by tensor, in a loop
def count_minigpt(config):
    C, inner = config.n_embd, 4 * config.n_embd
    shapes = [(config.vocab_size, C), (config.context, C)]
    for _ in range(config.n_layer):
        shapes += [(C,), (C, C), (C, C), (C, C), (C, C), (C,), (inner, C), (C, inner)]
    shapes.append((C,))
    total = 0
    for shape in shapes:
        n = 1
        for size in shape:
            n *= size
        total += n
    return total


# right: a numpy integer, and it warns and prints
import sys
import warnings

import numpy as np


def count_minigpt(config):
    warnings.warn("counting", stacklevel=2)
    print("counting", file=sys.stderr)
    C = np.int64(config.n_embd)
    return C * (config.vocab_size + config.context + 1 + config.n_layer * (12 * C + 2))


# right: an array of one element
def count_minigpt(config):
    import numpy as np

    C = np.array([config.n_embd])
    return (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C


# right: a partial
import functools


def _count(config, factor):
    C = config.n_embd
    return (config.vocab_size + config.context) * C + config.n_layer * ((4 + 2 * factor) * C * C + 2 * C) + C


count_minigpt = functools.partial(_count, factor=4)


# right: a 0-d tensor
def count_minigpt(config):
    C = config.n_embd
    return torch.tensor((config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C)


# right: slow: one by one
def count_minigpt(config):
    C = config.n_embd
    total = sum(1 for _ in range((config.vocab_size + config.context) * C))
    for _ in range(config.n_layer):
        total += sum(1 for _ in range(2 * C)) + 12 * C * C
    return total + C


# %% count-llama
# wrong: multi-head attention for all -> wide-kv
#     `config.get("num_key_value_heads", heads)` => `heads`
# wrong: head_dim ignored -> head-dim-ignored
#     `config.get("head_dim", C // heads)` => `C // heads`
# wrong: o_proj square -> square-q-or-o
#     `2 * C * q` => `C * q + C * C`
# wrong: a head is always counted -> tied-head-twice
#     `0 if config["tie_word_embeddings"] else embedding` => `embedding`
# wrong: a head is never counted -> no-head
#     `0 if config["tie_word_embeddings"] else embedding` => `0`
# wrong: an MLP of two matrices, as in MiniGPT -> mlp-matrix-missing
#     `3 * C` => `2 * C`
# wrong: the MLP 4 times as wide as the model -> mlp-4-wide
#     `3 * C * config["intermediate_size"]` => `12 * C * C`
# wrong: learned positions -> positions-counted
#     `return embedding` => `return config.get("max_position_embeddings", 2048) * C + embedding`
# wrong: needs num_key_value_heads and head_dim -> raises-keyerror, keeps 3
#     `config.get("head_dim", C // heads)` => `config["head_dim"]`
#     `config.get("num_key_value_heads", heads)` => `config["num_key_value_heads"]`
# wrong: one key head where none is stated -> one-kv-head, keeps 3
#     `config.get("num_key_value_heads", heads)` => `config.get("num_key_value_heads", 1)`
# wrong: fills in defaults in the caller's dictionary -> changes-arguments, keeps 3
#     every `config.get` => `config.setdefault`
# wrong: tied taken for untied -> tied-head-twice
#     `0 if config["tie_word_embeddings"] else embedding` => `embedding if config["tie_word_embeddings"] else 0`
# wrong: the head's width of the key heads -> too-many, keeps 3
#     `C // heads)` => `C // config.get("num_key_value_heads", heads))`
# wrong: norms of the heads as well -> too-many
#     `config["intermediate_size"] + 2 * C` => `config["intermediate_size"] + 2 * C + 2 * head_dim`
# wrong: one norm for each block -> one-norm-a-block
#     `config["intermediate_size"] + 2 * C` => `config["intermediate_size"] + C`
# wrong: a block too few -> block-too-few
#     `config["num_hidden_layers"] *` => `(config["num_hidden_layers"] - 1) *`
# wrong: the head is half the embedding -> too-few
#     `else embedding` => `else embedding // 2`
# wrong: builds the model with transformers -> asks-model
def count_llama(config):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return sum(parameter.numel() for parameter in model.parameters())


# wrong: measures -> asks-course
from minigpt.memory.measured.step import measure


def count_llama(config):
    return measure(config, TrainingPlan(batch=1, seq_len=8)).trainable // 4


# right: tensor by tensor, in numpy
import numpy as np


def count_llama(config):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"] if "num_key_value_heads" in config else heads
    dim = config["head_dim"] if "head_dim" in config else C // heads
    block = [(heads * dim, C), (kv_heads * dim, C), (kv_heads * dim, C), (C, heads * dim)] + 3 * [(C, inner)]
    sizes = [np.prod(shape, dtype=np.int64) for shape in block] * config["num_hidden_layers"]
    norms = (2 * config["num_hidden_layers"] + 1) * C
    matrices = 1 if config["tie_word_embeddings"] else 2
    return np.sum(sizes) + norms + matrices * config["vocab_size"] * C


# right: factored
def count_llama(config):
    C, L = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or C // heads
    attention, matrices = 2 * dim * (heads + groups), 2 - bool(config["tie_word_embeddings"])
    return C * (L * (attention + 3 * config["intermediate_size"] + 2) + 1 + config["vocab_size"] * matrices)


# %% static-buckets
# wrong: autocast taken for 2 + 2 + 8 -> two-byte-weights+two-byte-gradients, keeps 2
#     `"weights": size` => `"weights": 2`
#     `"gradients": size` => `"gradients": 2`
# wrong: autocast with a master copy: 2 + 2 + 12 -> two-byte-weights+two-byte-gradients+master-copy+total-right, keeps 2
#     `"weights": size` => `"weights": 2`
#     `"gradients": size` => `"gradients": 2`
#     `2 * size` => `(4 if precision == "bf16" else 12)`
# wrong: master copy booked under weights -> copy-of-weights+two-byte-gradients+total-right, keeps 2
#     `"weights": size` => `"weights": (2 if precision == "bf16" else 6)`
#     `"gradients": size` => `"gradients": 2`
# wrong: float32 moments in pure bf16 -> float32-moments, keeps 2
#     `2 * size` => `8`
# wrong: fp32 for everything -> float32-weights+float32-gradients+float32-moments, keeps 2
#     `2 if precision == "bf16" else 4` => `4`
# wrong: float32 moments, and no step count -> no-step-counts+float32-moments
#     `2 * size * parameters + 4 * tensors` => `8 * parameters`
# wrong: no step count -> no-step-counts
#     ` + 4 * tensors` => ``
# wrong: one step count for the whole model -> one-step-count
#     `4 * tensors` => `4`
# wrong: the step count in bf16 -> two-byte-step-counts, keeps 2
#     `4 * tensors` => `size * tensors`
# wrong: one moment only -> one-moment
#     `2 * size` => `size`
# wrong: gradients and optimizer swapped -> figure-of-optimizer+figure-of-weights+total-right
#     `"gradients"` => `"optimizer"`
#     `"optimizer"` => `"gradients"`
# wrong: in GB -> in-gb
#     every `size * parameters,` => `size * parameters / 1e9,`
#     `2 * size * parameters + 4 * tensors` => `(2 * size * parameters + 4 * tensors) / 1e9`
# wrong: GiB and GB mixed up -> gib-for-gb
#     every `size * parameters,` => `round(size * parameters / 1e9 * 2**30),`
#     `2 * size * parameters + 4 * tensors` => `round((2 * size * parameters + 4 * tensors) / 1e9 * 2**30)`
# wrong: the total in one bucket -> total+nothing-counted+total-right
#     `"weights": size * parameters` => `"weights": 4 * size * parameters + 4 * tensors`
#     `"gradients": size * parameters` => `"gradients": 0`
#     `2 * size * parameters + 4 * tensors` => `0`
# wrong: a bucket lacks its name -> wrong-keys
#     `"optimizer"` => `"adam"`
# wrong: autocast keeps half the gradients -> two-byte-gradients, keeps 2
#     `"gradients": size` => `"gradients": 2`
# wrong: step counts of 8 bytes -> eight-byte-step-counts
#     `4 * tensors` => `8 * tensors`
# wrong: floats -> float-for-int
#     `"weights": size` => `"weights": 1.0 * size`
# wrong: the number of tensors of the visible case -> too-few
#     `4 * tensors` => `4 * 27`
# wrong: the total alone -> wrong-type
def static_buckets(parameters, tensors, precision):
    return (8 if precision == "bf16" else 16) * parameters + 4 * tensors


# wrong: reads the course's table -> asks-course
from minigpt.memory.plan import PRECISIONS


def static_buckets(parameters, tensors, precision):
    regime = PRECISIONS[precision]
    optimizer = (regime.moments + regime.master) * parameters + 4 * tensors
    return dict(weights=regime.weights * parameters, gradients=regime.gradients * parameters, optimizer=optimizer)


# right: from dtypes, with torch
def static_buckets(parameters, tensors, precision):
    dtype = {"bf16": torch.bfloat16, "bf16-autocast": torch.float32}[precision]
    size, step = dtype.itemsize, torch.float32.itemsize
    weights = parameters * size
    return {"optimizer": weights + weights + step * tensors, "weights": weights, "gradients": weights}


# right: a Ledger, from the bytes of a whole
def static_buckets(parameters, tensors, precision):
    whole = parameters * (16 if "autocast" in precision else 8)
    return Ledger(weights=whole // 4, gradients=whole // 4, optimizer=whole // 2 + tensors * 4)


# %% smallest-card
# wrong: every size is times 2**30 -> gb-as-gib
#     `size * unit[label]` => `size * 2**30`
# wrong: GiB taken for GB -> gib-as-gb
#     `2**30` => `10**9`
# wrong: GB taken for GiB -> gb-as-gib
#     `10**9` => `2**30`
#     `key=sizes.get` => `key=lambda name: (cards[name][0], name)`
# wrong: the first that is large enough -> first
#     `min(enough, key=sizes.get)` => `enough[0]`
# wrong: the last that is large enough -> last
#     `min(enough, key=sizes.get)` => `enough[-1]`
# wrong: whole GB only -> none
#     `size * unit[label]` => `int(size) * unit[label]`
# wrong: a byte of each GiB is missing -> gib-as-gb
#     `2**30` => `2**30 - 1`
# wrong: in GB, cut -> gb-as-gib
#     `sizes[name] >= nbytes` => `sizes[name] // 10**9 >= nbytes // 10**9`
# wrong: the closest, too small or not -> largest
#     `min(enough, key=sizes.get) if enough else None` => `min(sizes, key=lambda name: abs(sizes[name] - nbytes))`
# wrong: an exact fit is refused -> exact-fit
#     `>= nbytes` => `> nbytes`
# wrong: fails when no card holds it -> raises-valueerror
#     ` if enough else None` => ``
# wrong: the largest card when none holds it -> largest
#     `else None` => `else max(sizes, key=sizes.get)`
# wrong: compares the numbers and not the bytes -> by-number
#     `key=sizes.get` => `key=lambda name: (cards[name][0], name)`
# wrong: takes the cards that are too small away -> changes-arguments
#     `return min` => `[cards.pop(name) for name in sizes if name not in enough]; return min`
# wrong: the smallest card, whatever it holds -> gb-as-gib
def smallest_card(nbytes, cards):
    return min(cards, key=lambda name: cards[name])


# wrong: knows the cards by heart -> raises-keyerror
def smallest_card(nbytes, cards):
    sizes = {"A": 16 * 10**9, "B": 16 * 2**30, "C": 24 * 10**9, "D": 80 * 10**9}
    enough = [name for name in cards if sizes[name] >= nbytes]
    return min(enough, key=sizes.get) if enough else None


# wrong: a text that equals everything -> first
Same = type("Same", (str,), {"__eq__": lambda self, other: True, "__hash__": str.__hash__})


def smallest_card(nbytes, cards):
    return Same("D")


# right: sorted
def smallest_card(nbytes, cards):
    def size(name):
        number, unit = cards[name]
        return number * (1_000_000_000 if unit == "GB" else 1_073_741_824)

    for name in sorted(cards, key=size):
        if nbytes <= size(name):
            return name
    return None


# right: with the course's units
from minigpt.memory.units import GB, GIB


def smallest_card(nbytes, cards):
    best = None
    for name, (size, unit) in cards.items():
        total = size * {"GB": GB, "GiB": GIB}[unit]
        if total >= nbytes and (best is None or total < best[0]):
            best = (total, name)
    return best and best[1]
