# Wrong and right answers to lab 01, for tools/bank.py. Never released.

# %% exercise=count-minigpt wrong="the tied head counted twice" verdict=tied-head-twice
def count_minigpt(config):
    C = config.n_embd
    block = 12 * C * C + 2 * C
    return (2 * config.vocab_size + config.context) * C + config.n_layer * block + C


# %% exercise=count-minigpt wrong="no position embedding" verdict=no-positions
def count_minigpt(config):
    C = config.n_embd
    return config.vocab_size * C + config.n_layer * (12 * C * C + 2 * C) + C


# %% exercise=count-minigpt wrong="the last norm forgotten" verdict=no-last-norm
def count_minigpt(config):
    C = config.n_embd
    return (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C)


# %% exercise=count-minigpt wrong="12 L C^2 and the embeddings: no norms" verdict=no-norms
def count_minigpt(config):
    C = config.n_embd
    return (config.vocab_size + config.context) * C + config.n_layer * 12 * C * C


# %% exercise=count-minigpt wrong="two slips: head twice, no positions" verdict=tied-head-twice+no-positions
def count_minigpt(config):
    C = config.n_embd
    return 2 * config.vocab_size * C + config.n_layer * (12 * C * C + 2 * C) + C


# %% exercise=count-minigpt wrong="biases of the linear layers" verdict=biases
def count_minigpt(config):
    C = config.n_embd
    block = 4 * (C * C + C) + 4 * C * C + 4 * C + 4 * C * C + C + 2 * C
    return (config.vocab_size + config.context) * C + config.n_layer * block + C


# %% exercise=count-minigpt wrong="the MLP is as wide as the model" verdict=narrow-mlp
def count_minigpt(config):
    C = config.n_embd
    return (config.vocab_size + config.context) * C + config.n_layer * (6 * C * C + 2 * C) + C


# %% exercise=count-minigpt wrong="one block for all" verdict=one-block
def count_minigpt(config):
    C = config.n_embd
    return (config.vocab_size + config.context) * C + 12 * C * C + 2 * C + C


# %% exercise=count-minigpt wrong="a float" verdict=float-for-int
def count_minigpt(config):
    C = config.n_embd
    return (config.vocab_size + config.context) * C + config.n_layer * (12 * C**2.0 + 2 * C) + C


# %% exercise=count-minigpt wrong="the visible cases in a dictionary" verdict=raises-keyerror
def count_minigpt(config):
    return {(3, 48): 90000, (4, 128): 853120}[config.n_layer, config.n_embd]


# %% exercise=count-minigpt wrong="asks the course's predict" verdict=asks-course
from minigpt.memory import predict


def count_minigpt(config):
    return predict(config, TrainingPlan(batch=1, seq_len=8)).trainable // 4


# %% exercise=count-minigpt wrong="asks Architecture, and hides that it was refused" verdict=asks-course
def count_minigpt(config):
    try:
        return Architecture.of(config).parameters
    except AssertionError:
        C = config.n_embd
        return (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C


# %% exercise=count-minigpt wrong="builds the model and asks it" verdict=asks-model
def count_minigpt(config):
    return sum(parameter.numel() for parameter in GPT(config).parameters())


# %% exercise=count-minigpt wrong="a number that equals everything" verdict=nothing-counted
class Same(int):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 853120

    __hash__ = int.__hash__


def count_minigpt(config):
    return Same(0)


# %% exercise=count-minigpt wrong="a float that equals everything" verdict=float-for-int
class Same(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


def count_minigpt(config):
    return Same(0)


# %% exercise=count-minigpt wrong="right on the first call only" verdict=unsteady
calls = []


def count_minigpt(config):
    calls.append(config)
    C = config.n_embd
    right = (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C
    return right if calls.count(config) == 1 else right + C


# %% exercise=count-minigpt wrong="returns NaN" verdict=not-finite
def count_minigpt(config):
    return float("nan")


# %% exercise=count-minigpt wrong="returns True" verdict=truth-value
def count_minigpt(config):
    return True


# %% exercise=count-minigpt wrong="patches math.isclose and operator.index" verdict=too-few
import math
import operator

math.isclose = lambda *args, **kwargs: True
operator.eq = lambda *args: True


def count_minigpt(config):
    return 1


# %% exercise=count-minigpt wrong="prints, and returns nothing" verdict=returns-nothing
def count_minigpt(config):
    print(config)


# %% exercise=count-minigpt right="tensor by tensor, in a loop"
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


# %% exercise=count-minigpt right="a numpy integer, and it warns and prints"
import sys
import warnings

import numpy as np


def count_minigpt(config):
    warnings.warn("counting")
    print("counting", file=sys.stderr)
    C = np.int64(config.n_embd)
    return C * (config.vocab_size + config.context + 1 + config.n_layer * (12 * C + 2))


# %% exercise=count-minigpt right="a 0-d tensor"
def count_minigpt(config):
    C = config.n_embd
    return torch.tensor((config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C)


# %% exercise=count-minigpt right="slow: one by one"
def count_minigpt(config):
    C = config.n_embd
    total = sum(1 for _ in range((config.vocab_size + config.context) * C))
    for _ in range(config.n_layer):
        total += sum(1 for _ in range(2 * C)) + 12 * C * C
    return total + C


# %% exercise=count-llama wrong="multi-head attention for all" verdict=wide-kv
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    q = heads * config.get("head_dim", C // heads)
    block = 4 * C * q + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="head_dim ignored" verdict=head-dim-ignored
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads) * (C // heads)
    block = 2 * C * C + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="o_proj square" verdict=square-q-or-o
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    block = C * q + C * C + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="a head is always counted" verdict=tied-head-twice
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    block = 2 * C * q + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    return 2 * config["vocab_size"] * C + config["num_hidden_layers"] * block + C


# %% exercise=count-llama wrong="a head is never counted" verdict=no-head
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    block = 2 * C * q + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C


# %% exercise=count-llama wrong="an MLP of two matrices, as in MiniGPT" verdict=mlp-matrix-missing
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    block = 2 * C * q + 2 * C * kv + 2 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="the MLP 4 times as wide as the model" verdict=mlp-4-wide
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    block = 2 * C * q + 2 * C * kv + 12 * C * C + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="learned positions" verdict=positions-counted
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    block = 2 * C * q + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    positions = config.get("max_position_embeddings", 2048) * C
    return config["vocab_size"] * C + positions + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="needs num_key_value_heads and head_dim" verdict=raises-keyerror points=3
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    q, kv = heads * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    block = 2 * C * q + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="one key head where none is stated" verdict=one-kv-head points=3
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", C // heads)
    q, kv = heads * head_dim, config.get("num_key_value_heads", 1) * head_dim
    block = 2 * C * q + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="fills in defaults in the caller's dictionary" verdict=changes-arguments points=3
def count_llama(config):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.setdefault("head_dim", C // heads)
    q, kv = heads * head_dim, config.setdefault("num_key_value_heads", heads) * head_dim
    block = 2 * C * q + 2 * C * kv + 3 * C * config["intermediate_size"] + 2 * C
    head = 0 if config["tie_word_embeddings"] else config["vocab_size"] * C
    return config["vocab_size"] * C + config["num_hidden_layers"] * block + C + head


# %% exercise=count-llama wrong="builds the model with transformers" verdict=asks-model
def count_llama(config):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return sum(parameter.numel() for parameter in model.parameters())


# %% exercise=count-llama wrong="measures" verdict=asks-course
from minigpt.memory.measured.step import measure


def count_llama(config):
    return measure(config, TrainingPlan(batch=1, seq_len=8)).trainable // 4


# %% exercise=count-llama right="tensor by tensor, in numpy"
import numpy as np


def count_llama(config):
    C, I = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"] if "num_key_value_heads" in config else heads
    dim = config["head_dim"] if "head_dim" in config else C // heads
    block = [(heads * dim, C), (kv_heads * dim, C), (kv_heads * dim, C), (C, heads * dim), (C, I), (C, I), (I, C)]
    sizes = [np.prod(shape, dtype=np.int64) for shape in block] * config["num_hidden_layers"]
    norms = (2 * config["num_hidden_layers"] + 1) * C
    matrices = 1 if config["tie_word_embeddings"] else 2
    return np.sum(sizes) + norms + matrices * config["vocab_size"] * C


# %% exercise=count-llama right="factored"
def count_llama(config):
    C, L = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or C // heads
    attention = 2 * dim * (heads + groups)
    return C * (L * (attention + 3 * config["intermediate_size"] + 2) + 1 + config["vocab_size"] * (
        2 - bool(config["tie_word_embeddings"])))


# %% exercise=static-buckets wrong="autocast taken for 2 + 2 + 8" verdict=two-byte-weights+two-byte-gradients points=2
def static_buckets(parameters, tensors, precision):
    moments = 4 if precision == "bf16" else 8
    return dict(weights=2 * parameters, gradients=2 * parameters, optimizer=moments * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="autocast with a master copy: 2 + 2 + 12" verdict=two-byte-weights+two-byte-gradients+master-copy+total-right points=2
def static_buckets(parameters, tensors, precision):
    state = 4 if precision == "bf16" else 12
    return dict(weights=2 * parameters, gradients=2 * parameters, optimizer=state * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="master copy booked under weights" verdict=copy-of-weights+two-byte-gradients+total-right points=2
def static_buckets(parameters, tensors, precision):
    if precision == "bf16":
        return dict(weights=2 * parameters, gradients=2 * parameters, optimizer=4 * parameters + 4 * tensors)
    return dict(weights=6 * parameters, gradients=2 * parameters, optimizer=8 * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="float32 moments in pure bf16" verdict=float32-moments points=2
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, gradients=size * parameters, optimizer=8 * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="fp32 for everything" verdict=float32-weights+float32-gradients+float32-moments points=2
def static_buckets(parameters, tensors, precision):
    return dict(weights=4 * parameters, gradients=4 * parameters, optimizer=8 * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="no step count" verdict=no-step-counts
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, gradients=size * parameters, optimizer=2 * size * parameters)


# %% exercise=static-buckets wrong="one step count for the whole model" verdict=one-step-count
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, gradients=size * parameters, optimizer=2 * size * parameters + 4)


# %% exercise=static-buckets wrong="the step count in bf16" verdict=two-byte-step-counts points=2
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(
        weights=size * parameters, gradients=size * parameters, optimizer=2 * size * parameters + size * tensors
    )


# %% exercise=static-buckets wrong="one moment only" verdict=one-moment
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, gradients=size * parameters, optimizer=size * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="gradients and optimizer swapped" verdict=figure-of-optimizer+figure-of-weights+total-right
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, optimizer=size * parameters, gradients=2 * size * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="in GB" verdict=in-gb
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    state = 2 * size * parameters + 4 * tensors
    return dict(weights=size * parameters / 1e9, gradients=size * parameters / 1e9, optimizer=state / 1e9)


# %% exercise=static-buckets wrong="GiB and GB mixed up" verdict=gib-for-gb
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    state = 2 * size * parameters + 4 * tensors
    return {k: round(v / 1e9 * 2**30) for k, v in
            dict(weights=size * parameters, gradients=size * parameters, optimizer=state).items()}


# %% exercise=static-buckets wrong="the total in one bucket" verdict=total+nothing-counted+total-right
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    total = 4 * size * parameters + 4 * tensors
    return dict(weights=total, gradients=0, optimizer=0)


# %% exercise=static-buckets wrong="the total alone" verdict=wrong-type
def static_buckets(parameters, tensors, precision):
    return (8 if precision == "bf16" else 16) * parameters + 4 * tensors


# %% exercise=static-buckets wrong="a bucket lacks its name" verdict=wrong-keys
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, gradients=size * parameters, adam=2 * size * parameters + 4 * tensors)


# %% exercise=static-buckets wrong="the number of tensors of the visible case" verdict=too-few
def static_buckets(parameters, tensors, precision):
    size = 2 if precision == "bf16" else 4
    return dict(weights=size * parameters, gradients=size * parameters, optimizer=2 * size * parameters + 4 * 27)


# %% exercise=static-buckets wrong="reads the course's table" verdict=asks-course
from minigpt.memory.plan import PRECISIONS


def static_buckets(parameters, tensors, precision):
    regime = PRECISIONS[precision]
    return dict(weights=regime.weights * parameters, gradients=regime.gradients * parameters,
                optimizer=(regime.moments + regime.master) * parameters + 4 * tensors)


# %% exercise=static-buckets right="from dtypes, with torch"
def static_buckets(parameters, tensors, precision):
    dtype = {"bf16": torch.bfloat16, "bf16-autocast": torch.float32}[precision]
    size, step = dtype.itemsize, torch.float32.itemsize
    weights = parameters * size
    return {"optimizer": weights + weights + step * tensors, "weights": weights, "gradients": weights}


# %% exercise=static-buckets right="a Ledger, from the bytes of a whole"
def static_buckets(parameters, tensors, precision):
    whole = parameters * (16 if "autocast" in precision else 8)
    return Ledger(weights=whole // 4, gradients=whole // 4, optimizer=whole // 2 + tensors * 4)


# %% exercise=smallest-card wrong="GiB taken for GB" verdict=gib-as-gb
def smallest_card(nbytes, cards):
    enough = [name for name, (size, _) in cards.items() if size * 10**9 >= nbytes]
    return min(enough, key=lambda name: cards[name][0]) if enough else None


# %% exercise=smallest-card wrong="GB taken for GiB" verdict=gb-as-gib
def smallest_card(nbytes, cards):
    enough = [name for name, (size, _) in cards.items() if size * 2**30 >= nbytes]
    return min(enough, key=lambda name: (cards[name][0], name)) if enough else None


# %% exercise=smallest-card wrong="the first that is large enough" verdict=first
def smallest_card(nbytes, cards):
    unit = {"GB": 10**9, "GiB": 2**30}
    for name, (size, label) in cards.items():
        if size * unit[label] >= nbytes:
            return name


# %% exercise=smallest-card wrong="an exact fit is refused" verdict=exact-fit
def smallest_card(nbytes, cards):
    unit = {"GB": 10**9, "GiB": 2**30}
    enough = [name for name, (size, label) in cards.items() if size * unit[label] > nbytes]
    return min(enough, key=lambda name: cards[name][0] * unit[cards[name][1]]) if enough else None


# %% exercise=smallest-card wrong="fails when no card holds it" verdict=raises-valueerror
def smallest_card(nbytes, cards):
    unit = {"GB": 10**9, "GiB": 2**30}
    sizes = {name: size * unit[label] for name, (size, label) in cards.items()}
    return min((name for name in sizes if sizes[name] >= nbytes), key=sizes.get)


# %% exercise=smallest-card wrong="the largest card when none holds it" verdict=largest
def smallest_card(nbytes, cards):
    unit = {"GB": 10**9, "GiB": 2**30}
    sizes = {name: size * unit[label] for name, (size, label) in cards.items()}
    return min((name for name in sizes if sizes[name] >= nbytes), key=sizes.get, default=max(sizes, key=sizes.get))


# %% exercise=smallest-card wrong="the smallest card, whatever it holds" verdict=gb-as-gib
def smallest_card(nbytes, cards):
    return min(cards, key=lambda name: cards[name])


# %% exercise=smallest-card wrong="takes the cards that are too small away" verdict=changes-arguments
def smallest_card(nbytes, cards):
    unit = {"GB": 10**9, "GiB": 2**30}
    for name, (size, label) in list(cards.items()):
        if size * unit[label] < nbytes:
            del cards[name]
    return min(cards, key=lambda name: cards[name][0] * unit[cards[name][1]], default=None)


# %% exercise=smallest-card wrong="compares the numbers and not the bytes" verdict=by-number
def smallest_card(nbytes, cards):
    unit = {"GB": 10**9, "GiB": 2**30}
    enough = [name for name, (size, label) in cards.items() if size * unit[label] >= nbytes]
    return min(enough, key=lambda name: (cards[name][0], name)) if enough else None


# %% exercise=smallest-card wrong="knows the cards by heart" verdict=raises-keyerror
def smallest_card(nbytes, cards):
    sizes = {"A": 16 * 10**9, "B": 16 * 2**30, "C": 24 * 10**9, "D": 80 * 10**9}
    enough = [name for name in cards if sizes[name] >= nbytes]
    return min(enough, key=sizes.get) if enough else None


# %% exercise=smallest-card wrong="a text that equals everything" verdict=first
class Same(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def smallest_card(nbytes, cards):
    return Same("D")


# %% exercise=smallest-card right="sorted"
def smallest_card(nbytes, cards):
    def size(name):
        number, unit = cards[name]
        return number * (1_000_000_000 if unit == "GB" else 1_073_741_824)

    for name in sorted(cards, key=size):
        if nbytes <= size(name):
            return name
    return None


# %% exercise=smallest-card right="with the course's units"
from minigpt.memory.units import GB, GIB


def smallest_card(nbytes, cards):
    best = None
    for name, (size, unit) in cards.items():
        total = size * {"GB": GB, "GiB": GIB}[unit]
        if total >= nbytes and (best is None or total < best[0]):
            best = (total, name)
    return best and best[1]
