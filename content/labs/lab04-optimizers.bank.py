# Wrong and right answers to lab 04, as tools/bank_entries.py reads them. Never released.

# %% adam-step
# wrong: float64 -> wrong-dtype
#     `direction, m, v` => `direction.double(), m.double(), v.double()`
# wrong: never corrected -> not-corrected, keeps 1
#     `m / (1 - b1**t)` => `m`
#     `v / (1 - b2**t)` => `v`
# wrong: v not corrected -> v-not-corrected, keeps 1
#     `v / (1 - b2**t)` => `v`
# wrong: no power of t -> no-power, keeps 1
#     `b1**t` => `b1`
#     `b2**t` => `b2`
# wrong: t counted from 0 -> one-ahead, keeps 1
#     `b1**t` => `b1 ** (t + 1)`
#     `b2**t` => `b2 ** (t + 1)`
# wrong: the old moments move -> old-moments, keeps 1
#     `m = b1 * m` => `old_m, m = m, b1 * m`
#     `v = b2 * v` => `old_v, v = v, b2 * v`
#     `= m / (1 - b1**t) / ((v /` => `= old_m / (1 - b1**t) / ((old_v /`
# wrong: eps under the root -> eps-in-root, keeps 1
#     `(v / (1 - b2**t)).sqrt() + eps` => `v / (1 - b2**t) + eps).sqrt(`
# wrong: eps before the correction -> eps-corrected, keeps 1
#     `(v / (1 - b2**t)).sqrt() + eps` => `(v.sqrt() + eps) / (1 - b2**t) ** 0.5`
# wrong: no root -> no-root, keeps 1
#     `.sqrt()` => ``
# wrong: upwards -> ascends, keeps 1
#     `- lr * direction` => `+ lr * direction`
# wrong: the gradient in the place of m -> gradient-for-m, keeps 1
#     `direction = m / (1 - b1**t)` => `direction = grad`
# wrong: the decay added to the gradient -> coupled-decay, keeps 3
#     `b1, b2 = betas` => `(b1, b2), grad = betas, grad + decay * weight`
#     `weight * (1 - lr * decay)` => `weight`
# wrong: no decay -> no-decay, keeps 3
#     `weight * (1 - lr * decay)` => `weight`
# wrong: decay without lr -> decay-without-lr, keeps 3
#     `1 - lr * decay` => `1 - decay`
# wrong: moved, then shrunk -> decay-after, keeps 3
#     `weight * (1 - lr * decay) - lr * direction` => `(weight - lr * direction) * (1 - lr * decay)`
# wrong: a sum, as of momentum -> sum-not-mean
#     `(1 - b1) * grad` => `grad`
# wrong: not squared -> not-squared
#     `grad**2` => `grad`
# wrong: the betas swapped -> betas-swapped
#     `b1, b2 = betas` => `b2, b1 = betas`
# wrong: the corrected moments are kept -> corrected-kept
#     `- lr * direction, m, v` => `- lr * direction, m / (1 - b1**t), v / (1 - b2**t)`
# wrong: in place -> changes-arguments
#     `m = b1 * m + (1 - b1) * grad` => `m.mul_(b1).add_((1 - b1) * grad)`
# wrong: the weight comes last -> order
#     `return weight` => `return m, v, weight`
#     `- lr * direction, m, v` => `- lr * direction`
# wrong: only the weight -> no-tuple
#     `- lr * direction, m, v` => `- lr * direction`
# wrong: asks torch -> asks-optimizer
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    p = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([p], lr=lr, betas=betas, eps=eps, weight_decay=decay)
    optimizer.state[p] = {"step": torch.tensor(t - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    p.grad = grad
    optimizer.step()
    return p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]


# wrong: asks torch's function -> asks-optimizer
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    from torch.optim.adamw import adamw

    w, m, v, step = weight.clone(), m.clone(), v.clone(), torch.tensor(t - 1.0)
    adamw([w], [grad], [m], [v], [], [step], amsgrad=False, beta1=betas[0], beta2=betas[1], lr=lr, weight_decay=decay,
          eps=eps, maximize=False)  # fmt: skip
    return w, m, v


# wrong: asks the course -> asks-course
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    from minigpt.optim import adam_step

    return tuple(adam_step(weight, grad, m, v, t, lr=lr, betas=betas, eps=eps, weight_decay=decay))


# wrong: asks the check -> asks-course
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    from minigpt.checks.optimizers.adam import Step, by_torch

    return tuple(by_torch(Step(t, decay, tuple(weight.shape), lr, betas, eps)).values())


# right: lerp and addcdiv, the correction in the step size, a list
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    new_m = torch.lerp(m, grad, 1 - betas[0])
    new_v = (betas[1] * v).addcmul(grad, grad, value=1 - betas[1])
    below = new_v.sqrt() / (1 - betas[1] ** t) ** 0.5 + eps
    return [(weight - lr * decay * weight).addcdiv(new_m, below, value=-lr / (1 - betas[0] ** t)), new_m, new_v]


# right: powers and roots by numpy, whose numbers are no Python floats
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    import numpy as np

    b1, b2 = np.array(betas)
    m, v = m * b1 + grad * (1 - b1), v * b2 + grad.square() * (1 - b2)
    c1, c2 = 1 - np.power(b1, t), np.sqrt(1 - np.power(b2, t))
    return weight - weight * (lr * decay) - m / (v.sqrt() / c2 + eps) * (lr / c1), m, v


# right: element by element, in float64
def adam_step(weight, grad, m, v, t, lr, betas, eps, decay):
    out = [[], [], []]
    for w, g, m1, v1 in zip(*(x.flatten().tolist() for x in (weight, grad, m, v))):
        m1, v1 = m1 + (1 - betas[0]) * (g - m1), v1 + (1 - betas[1]) * (g * g - v1)
        w -= lr * decay * w
        w -= lr * (m1 / (1 - betas[0] ** t)) / ((v1 / (1 - betas[1] ** t)) ** 0.5 + eps)
        for numbers, number in zip(out, (w, m1, v1)):
            numbers.append(number)
    return tuple(torch.tensor(numbers).view(weight.shape) for numbers in out)


# %% dynamic-map
# wrong: -1 in the place of 1 -> minus-one-for-one, keeps 1
#     `[0.0, 1.0]` => `[0.0, -1.0 if signed else 1.0]`
# wrong: six decades -> six-decades
#     `range(7)` => `range(6)`
# wrong: eight decades -> eight-decades
#     `range(7)` => `range(8)`
# wrong: the 0.1 where a decade begins is forgotten -> part-offset
#     `edges[1:]) / 2 *` => `edges[1:] - 0.2) / 2 *`
# wrong: the same map for both -> parts-halved, keeps 1
#     `(1 if signed else 2)` => `1`
# wrong: the maps swapped -> parts-doubled+parts-halved
#     `1 if signed else 2` => `2 if signed else 1`
# wrong: no negatives -> one-side, keeps 1
#     `if signed:` => `if False:`
# wrong: negatives always -> both-sides, keeps 1
#     `if signed:` => `if True:`
# wrong: the largest decade has the fewest values -> decades-reversed
#     `2**k` => `2 ** (6 - k)`
# wrong: lower ends -> left-ends
#     `(edges[:-1] + edges[1:]) / 2` => `edges[:-1]`
# wrong: edges -> edges
#     `(edges[:-1] + edges[1:]) / 2` => `edges`
# wrong: decades from 0 to 1 -> from-zero
#     `linspace(0.1, 1` => `linspace(0, 1`
# wrong: ten times too low -> decade-low
#     `k - 6` => `k - 7`
# wrong: 1 and zero forgotten -> no-ends
#     `[0.0, 1.0]` => `[]`
# wrong: 1 forgotten -> one-end-missing
#     `[0.0, 1.0]` => `[0.0]`
# wrong: zero twice -> no-one
#     `[0.0, 1.0]` => `[0.0, 0.0]`
# wrong: never sorted -> not-ascending
#     `sorted(values)` => `values`
# wrong: a list -> wrong-type
#     `torch.tensor(sorted(values))` => `sorted(values)`
# wrong: float64 -> wrong-dtype
#     `sorted(values)` => `sorted(values), dtype=torch.float64`
# wrong: linear -> linear
def dynamic_map(signed):
    return torch.linspace(-1 if signed else 0, 1, 256)


# wrong: asks bitsandbytes -> asks-bitsandbytes
def dynamic_map(signed):
    return bnb.create_dynamic_map(signed=signed)


# wrong: asks the course -> asks-course
from minigpt.optim.blockwise import dynamic_map


# right: by the width of a part, mirrored at the end
def dynamic_map(signed):
    above = []
    for k in range(7):
        parts = 2**k if signed else 2 ** (k + 1)
        width = 0.9 / parts
        above += [(0.1 + (i + 0.5) * width) / 10 ** (6 - k) for i in range(parts)]
    below = [-x for x in reversed(above)] if signed else []
    return torch.tensor([*below, 0, *above, 1], dtype=torch.float32)


# right: numpy
def dynamic_map(signed):
    import numpy as np

    parts = [(np.arange(n) + 0.5) / n for n in 2 ** np.arange(0 if signed else 1, 7 if signed else 8)]
    above = np.concatenate([(0.1 + 0.9 * part) * 10.0**-place for part, place in zip(parts, range(6, -1, -1))])
    return torch.from_numpy(np.sort(np.r_[-above if signed else [], 0, above, 1]).astype(np.float32))


# %% quantize
# wrong: one scale for the tensor -> one-absmax, keeps 1
#     `rows.abs().amax(dim=1)` => `rows.abs().max().repeat(len(rows))`
# wrong: only what lies row after row in memory -> raises-runtimeerror, keeps 1
#     `x.reshape(-1)` => `x.view(-1)`
# wrong: as it lies in memory -> columns, keeps 1
#     `x.reshape(-1)` => `(x.T if x.ndim == 2 and not x.is_contiguous() else x).reshape(-1)`
# wrong: max without abs -> no-abs, keeps 1
#     `rows.abs()` => `rows`
# wrong: blocks of 256 always -> absmax-each-256, keeps 1
#     `-len(flat) % block)).view(-1, block)` => `-len(flat) % 256)).view(-1, 256)`
# wrong: the value below, not the nearest -> largest-below, keeps 1
#     `(values[1:] + values[:-1]) / 2)` => `values, right=True).sub(1).clamp(0, 255)`
# wrong: into the map itself -> smallest-above, keeps 1
#     `(values[1:] + values[:-1]) / 2)` => `values).clamp(max=255)`
# wrong: never divided -> not-divided, keeps 1
#     ` * (1 / absmax.clamp(min=1e-38))[:, None]` => ``
# wrong: whole blocks only -> raises-runtimeerror, keeps 1
#     `F.pad(flat, (0, -len(flat) % block))` => `flat`
# wrong: the padding returned -> padding, keeps 1
#     `codes.view(-1)[: len(flat)]` => `codes.view(-1)`
# wrong: equal steps -> integer-steps, keeps 1
#     `torch.bucketize(scaled, (values[1:] + values[:-1]) / 2)` => `(127 * scaled).round() + 127`
# wrong: a guard that small blocks feel -> guarded, keeps 3
#     `1e-38` => `1e-12`
# wrong: int64 codes -> wrong-dtype, keeps 1
#     `.to(torch.uint8)` => ``
# wrong: absmax first -> swapped, keeps 1
#     `codes.view(-1)[: len(flat)].to(torch.uint8), absmax` => `absmax, codes.view(-1)[: len(flat)].to(torch.uint8)`
# wrong: back: absmax forgotten -> no-absmax, keeps 3
#     ` * absmax.repeat_interleave(block)[: len(codes)]` => ``
# wrong: back: dealt out with repeat -> repeat, keeps 3
#     `repeat_interleave(block)` => `repeat(block)`
# wrong: back: blocks of 256 always -> blocks-of-256, keeps 3
#     `repeat_interleave(block)` => `repeat_interleave(256)`
# wrong: back: the codes themselves -> codes-multiplied, keeps 3
#     `values[codes.int()]` => `codes`
# wrong: back: indexed with uint8 -> raises-indexerror, keeps 3
#     `codes.int()` => `codes`
# wrong: asks bitsandbytes -> asks-bitsandbytes
def quantize(x, values, block):
    codes, state = bnb.quantize_blockwise(x.reshape(-1), code=values, blocksize=block)
    return codes, state.absmax


def dequantize(codes, absmax, values, block):
    return bnb.dequantize_blockwise(codes, absmax=absmax, code=values, blocksize=block)


# wrong: asks the course -> asks-course, keeps 1
def quantize(x, values, block):
    from minigpt.optim import blockwise

    return tuple(blockwise.quantize(x.reshape(-1), values, block))


# right: block by block, divided, nearest by distance
def quantize(x, values, block):
    codes, scales = [], []
    for part in x.flatten().split(block):
        largest = part.abs().max()
        scaled = part / largest if largest > 0 else part
        codes.append((scaled.double()[:, None] - values.double()).abs().argmin(dim=1))
        scales.append(largest)
    return torch.cat(codes).to(torch.uint8), torch.stack(scales)


def dequantize(codes, absmax, values, block):
    out = torch.take(values, codes.long())
    for i in range(len(absmax)):
        out[i * block : (i + 1) * block] *= absmax[i]
    return out


# right: in float64, absmax as it is
def quantize(x, values, block):
    flat = x.flatten().double()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().max(1).values
    scaled = torch.nan_to_num(rows / absmax[:, None])
    middles = (values[1:].double() + values[:-1].double()) / 2
    return torch.bucketize(scaled, middles).flatten()[: len(flat)].to(torch.uint8), absmax.float()


# right: searchsorted, and where in the place of a clamp
def quantize(x, values, block):
    n = x.numel()
    padded = torch.zeros(-(-n // block) * block, device=x.device)
    padded[:n] = x.reshape(-1)
    rows = padded.reshape(-1, block)
    absmax = torch.maximum(rows.max(1).values, -rows.min(1).values)
    factor = torch.where(absmax == 0, torch.ones_like(absmax), 1 / absmax)
    codes = torch.searchsorted((values[:-1] + values[1:]) / 2, (rows * factor.unsqueeze(1)).flatten()[:n])
    return codes.byte(), absmax


def dequantize(codes, absmax, values, block):
    padded = F.pad(values[codes.long()], (0, -len(codes) % block)).view(-1, block)
    return (padded * absmax[:, None]).view(-1)[: len(codes)]


# %% state-bytes
# wrong: the scale of a short block in part -> moment-scales-in-parts
#     `2 * (n + 4 * -(-n // 256))` => `2 * n + 8 * n // 256`
# wrong: maps of a byte per value -> one-byte-maps
#     `2 * 4 * 256` => `2 * 256`
# wrong: math is not imported -> raises-nameerror
#     `-(-n // 256)` => `math.ceil(n / 256)`
# wrong: no small tensors -> eight-bit-moments
#     `if n >= 4096 else 8 * n` => ``
#     `if max(sizes) >= 4096 else 0` => ``
# wrong: no scales -> no-moment-scales
#     `n + 4 * -(-n // 256)` => `n`
# wrong: the last block lost -> moment-scales-rounded-down
#     `-(-n // 256)` => `(n // 256)`
# wrong: one moment -> one-moment
#     `2 * (n + 4` => `(n + 4`
#     `8 * n` => `4 * n`
# wrong: more than 4,096 -> edge
#     `n >= 4096` => `n > 4096`
# wrong: no maps -> no-maps
#     `(2 * 4 * 256 if max(sizes) >= 4096 else 0)` => `0`
# wrong: one map -> one-map
#     `2 * 4 * 256` => `4 * 256`
# wrong: maps in any case -> maps-for-nothing
#     `if max(sizes) >= 4096 else 0` => ``
# wrong: blocks of 64 -> moment-scale-each-64
#     `// 256` => `// 64`
# wrong: scales in 8 bits -> one-byte-moment-scales
#     `4 * -(-n // 256)` => `-(-n // 256)`
# wrong: the maps are decided by a sum -> maps-for-nothing
#     `max(sizes) >= 4096` => `sum(sizes) >= 4096`
# wrong: step counts -> step-counts
#     `return total` => `return total + 4 * len(sizes)`
# wrong: all tensors as one -> together
#     `for n in sizes` => `for n in [sum(sizes)]`
# wrong: in floats -> float-for-int
#     `-(-n // 256)` => `n / 256`
# wrong: asks bitsandbytes -> asks-optimizer
def state_bytes(sizes):
    from bitsandbytes.optim import AdamW8bit

    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
    optimizer = AdamW8bit(parameters)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return sum(x.nbytes for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x))


# wrong: asks the check -> asks-course
def state_bytes(sizes):
    from minigpt.checks.optimizers import moments

    return moments.moments(sizes)


# right: math.ceil
def state_bytes(sizes):
    import math

    large = [n for n in sizes if n >= 4096]
    small = [n for n in sizes if n < 4096]
    maps = 2 * 1024 if large else 0
    return maps + 2 * sum(n + 4 * math.ceil(n / 256) for n in large) + 2 * sum(4 * n for n in small)


# right: its own quantizer on zeros
def state_bytes(sizes):
    import numpy as np

    values, total = dynamic_map(True), 0
    for n in sizes:
        codes, absmax = quantize(torch.zeros(n), values, 256)
        total += 2 * (codes.nbytes + absmax.nbytes) if n >= 4096 else 2 * torch.zeros(n).nbytes
    return np.int64(total + 2 * values.nbytes * any(n >= 4096 for n in sizes))


# %% adam8bit-step
# wrong: one step ahead -> t-plus-one
#     `m, v, t, lr` => `m, v, t + 1, lr`
# wrong: always the first step's correction -> always-first, keeps 1
#     `m, v, t, lr` => `m, v, 1, lr`
# wrong: v in the map of m -> other-map, keeps 1
#     `v_absmax = quantize(v, maps["unsigned"]` => `v_absmax = quantize(v, maps["signed"]`
# wrong: m in the map of v -> other-map, keeps 1
#     `m_absmax = quantize(m, maps["signed"]` => `m_absmax = quantize(m, maps["unsigned"]`
# wrong: decoded with the maps swapped -> maps-swapped, keeps 2
#     `state["m_absmax"], maps["signed"]` => `state["m_absmax"], maps["unsigned"]`
#     `state["v_absmax"], maps["unsigned"], 256)` => `state["v_absmax"], maps["signed"], 256).clamp(min=0)`
# wrong: m decoded with the map of v -> m-unsigned, keeps 2
#     `state["m_absmax"], maps["signed"]` => `state["m_absmax"], maps["unsigned"]`
# wrong: v decoded with the map of m, below zero -> not-finite, keeps 2
#     `state["v_absmax"], maps["unsigned"]` => `state["v_absmax"], maps["signed"]`
# wrong: maps of its own -> own-maps, keeps 2
#     `small = weight` => `maps = {"signed": dynamic_map(True), "unsigned": dynamic_map(False)}; small = weight`
# wrong: a block of zeros is divided by its absmax -> not-finite, keeps 2
quantize_guarded = quantize


def quantize(x, values, block):
    codes, absmax = quantize_guarded(x, values, block)
    return codes, torch.where(absmax == 0, torch.nan, absmax)


def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    m = v = torch.zeros_like(weight)
    if state and weight.numel() < 4096:
        m, v = state["m"], state["v"]
    elif state:
        m = dequantize(state["m"], state["m_absmax"], maps["signed"], 256).view(weight.shape)
        v = dequantize(state["v"], state["v_absmax"], maps["unsigned"], 256).view(weight.shape)
    weight, m, v = adam_step(weight, grad, m, v, t, lr, betas, eps, decay)
    if weight.numel() < 4096:
        return weight, {"m": m, "v": v}
    (m, m_absmax), (v, v_absmax) = quantize(m, maps["signed"], 256), quantize(v, maps["unsigned"], 256)
    return weight, {"m": m, "m_absmax": m_absmax, "v": v, "v_absmax": v_absmax}


# wrong: float32 moments are kept on a global -> remembers, keeps 2
exact, right_step = {}, adam8bit_step


def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    moments = exact.get((weight.shape, t - 1))
    if not moments or t == 1 or weight.numel() < 4096:
        before = [torch.zeros_like(weight)] * 2
        if state and weight.numel() < 4096:
            before = [state["m"], state["v"]]
        elif state:
            before = [
                dequantize(state["m"], state["m_absmax"], maps["signed"], 256).view(weight.shape),
                dequantize(state["v"], state["v_absmax"], maps["unsigned"], 256).view(weight.shape),
            ]
        moments = before
    exact[weight.shape, t] = adam_step(weight, grad, *moments, t, lr, betas, eps, decay)[1:]
    return adam_step(weight, grad, *moments, t, lr, betas, eps, decay)[0], right_step(
        weight, grad, state, t, maps, lr, betas, eps, decay
    )[1]


# wrong: begins anew in each step -> state-forgotten, keeps 1
#     `if not state:` => `if True:`
# wrong: codes taken for numbers -> codes-as-numbers, keeps 2
#     `dequantize(state["m"], state["m_absmax"], maps["signed"], 256)` => `state["m"].float()`
#     `dequantize(state["v"], state["v_absmax"], maps["unsigned"], 256)` => `state["v"].float()`
# wrong: everything in float32 -> large-in-float32, keeps 1
#     `small = weight.numel() < 4096` => `small = True`
# wrong: 4,096 is small -> large-in-float32, keeps 1
#     `< 4096` => `<= 4096`
# wrong: everything in 8 bits -> small-in-8-bits, keeps 3
#     `small = weight.numel() < 4096` => `small = False`
# wrong: no decay -> no-decay
#     `eps, decay)` => `eps, 0.0)`
# wrong: codes and scales swapped in the state -> swapped, keeps 1
#     `"m": m, "m_absmax": m_absmax` => `"m": m_absmax, "m_absmax": m`
# wrong: the scales are lost -> wrong-keys, keeps 1
#     `"m_absmax": m_absmax, ` => ``
# wrong: the state alone -> no-pair
#     `return weight, {"m": m, "v": v}` => `return {"m": m, "v": v}`
#     `return weight, {"m": m, "m_absmax"` => `return {"m": m, "m_absmax"`
# wrong: rounded, then moved -> rounded-first, keeps 1
def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    kinds, rounded, new = {"m": "signed", "v": "unsigned"}, [], {}
    before = [torch.zeros_like(weight)] * 2
    if weight.numel() < 4096:
        w, m, v = adam_step(weight, grad, *(state.values() or before), t, lr, betas, eps, decay)
        return w, {"m": m, "v": v}
    if state:
        before = [dequantize(state[n], state[n + "_absmax"], maps[kinds[n]], 256).view(weight.shape) for n in "mv"]
    for name, x in zip("mv", adam_step(weight, grad, *before, t, lr, betas, eps, decay)[1:]):
        new[name], new[name + "_absmax"] = quantize(x, maps[kinds[name]], 256)
        rounded.append(dequantize(new[name], new[name + "_absmax"], maps[kinds[name]], 256).view(weight.shape))
    m, v = (x / (1 - beta**t) for x, beta in zip(rounded, betas))
    return weight * (1 - lr * decay) - lr * m / (v.sqrt() + eps), new


# wrong: asks the course -> asks-optimizer
def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    from minigpt.optim import AdamW8bit

    p = torch.nn.Parameter(weight.clone())
    optimizer = AdamW8bit([p], lr=lr, betas=betas, eps=eps, weight_decay=decay)
    optimizer.state[p].update(state)
    p.grad = grad
    optimizer.step()
    return p.detach(), optimizer.state[p]


# right: one function for both moments
def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    kinds = {"m": "signed", "v": "unsigned"}
    large = weight.numel() > 4095

    def read(name):
        if t == 1:
            return torch.zeros_like(weight)
        if not large:
            return state[name]
        return dequantize(state[name], state[name + "_absmax"], maps[kinds[name]], 256).reshape(weight.shape)

    weight, *moments = adam_step(weight, grad, read("m"), read("v"), t, lr, betas, eps, decay)
    new = {}
    for name, moment in zip("mv", moments):
        if large:
            new[name], new[name + "_absmax"] = quantize(moment, maps[kinds[name]], 256)
        else:
            new[name] = moment
    return weight, new


# right: all written out, in place on copies
def adam8bit_step(weight, grad, state, t, maps, lr, betas, eps, decay):
    n = weight.numel()
    m, v = torch.zeros(n), torch.zeros(n)
    if state and n < 4096:
        m, v = state["m"].flatten().clone(), state["v"].flatten().clone()
    elif state:
        m = maps["signed"][state["m"].long()] * state["m_absmax"].repeat_interleave(256)[:n]
        v = maps["unsigned"][state["v"].long()] * state["v_absmax"].repeat_interleave(256)[:n]
    g, w = grad.flatten(), weight.flatten().clone()
    m.mul_(betas[0]).add_(g, alpha=1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    w.mul_(1 - lr * decay)
    w.addcdiv_(m, v.div(1 - betas[1] ** t).sqrt_().add_(eps), value=-lr / (1 - betas[0] ** t))
    w = w.view_as(weight)
    if n < 4096:
        return w, dict(v=v.view_as(weight), m=m.view_as(weight))
    (m, m_absmax), (v, v_absmax) = quantize(m, maps["signed"], 256), quantize(v, maps["unsigned"], 256)
    return w, dict(v=v, v_absmax=v_absmax, m=m, m_absmax=m_absmax)


# %% static-bytes
# wrong: 16-bit weights under autocast -> two-byte-weights+two-byte-gradients+two-byte-moments, keeps 2
#     `precision == "bf16"` => `precision != "fp32"`
# wrong: float32 in any precision -> float32-weights+float32-gradients+float32-moments, keeps 2
#     `2 if precision == "bf16" else 4` => `4`
# wrong: float32 moments of 16-bit weights -> float32-moments, keeps 3
#     `2 * each * n + 4 * len(sizes)` => `8 * n + 4 * len(sizes)`
# wrong: no step counts -> no-step-counts, keeps 3
#     ` + 4 * len(sizes)` => ``
# wrong: one step count -> one-step-count, keeps 3
#     `4 * len(sizes)` => `4`
# wrong: one moment of AdamW -> one-moment, keeps 3
#     `2 * each * n + 4` => `each * n + 4`
# wrong: Lion's m in the weight's dtype -> weights-dtype, keeps 3
#     `"lion": 4 * n` => `"lion": each * n`
# wrong: Lion with two moments -> two-moments, keeps 3
#     `"lion": 4 * n` => `"lion": 8 * n`
# wrong: momentum in float32 -> float32-momentum, keeps 3
#     `"sgd_momentum": each * n` => `"sgd_momentum": 4 * n`
# wrong: SGD keeps nothing -> nothing-counted, keeps 3
#     `"sgd_momentum": each * n` => `"sgd_momentum": 0`
# wrong: 2 bytes per parameter, flat -> flat-two-bytes, keeps 3
#     `state_bytes(sizes)` => `2 * n`
# wrong: 8 bits for one large tensor -> together, keeps 3
#     `state_bytes(sizes)` => `state_bytes([n])`
# wrong: all in all there are 4,096 elements -> maps-for-nothing, keeps 3
#     `"adamw8bit": state_bytes(sizes)` => `"adamw8bit": state_bytes(sizes) + 2048 * (max(sizes) < 4096 <= n)`
# wrong: norms forgotten -> no-norms, keeps 3
#     `"weights": each * n` => `"weights": each * sum(n for n, s in zip(sizes, shapes) if len(s) > 1)`
# wrong: in elements -> quarter, keeps 3
#     `"weights": each * n` => `"weights": n`
# wrong: asks the course -> asks-course
def static_bytes(shapes, optimizer, precision):
    from minigpt.memory import TrainingPlan
    from minigpt.memory.predicted.static import predict_static

    ledger = predict_static("llama-7b", TrainingPlan(optimizer=optimizer, precision=precision))
    return {"weights": ledger.weights, "gradients": ledger.gradients, "optimizer": ledger.optimizer}


# wrong: asks the meter -> asks-course
def static_bytes(shapes, optimizer, precision):
    from minigpt.checks.optimizers import storage

    return storage.held("llama-7b", optimizer, precision)


# right: tensor by tensor
def static_bytes(shapes, optimizer, precision):
    itemsize = {"fp32": 4, "bf16": 2, "bf16-autocast": 4}[precision]
    stays = dict.fromkeys(("weights", "gradients", "optimizer"), 0)
    for shape in shapes:
        elements = 1
        for side in shape:
            elements *= side
        stays["weights"] += elements * itemsize
        stays["gradients"] += elements * itemsize
        if optimizer == "adamw":
            stays["optimizer"] += 2 * elements * itemsize + 4
        elif optimizer == "lion":
            stays["optimizer"] += elements * 4
        elif optimizer == "sgd_momentum":
            stays["optimizer"] += elements * itemsize
    if optimizer == "adamw8bit":
        stays["optimizer"] = state_bytes([prod(shape) for shape in shapes])
    return stays


# right: numpy integers and match
def static_bytes(shapes, optimizer, precision):
    import numpy as np

    sizes = np.array([np.prod(shape) for shape in shapes])
    weights = sizes.sum() * (2 if precision == "bf16" else 4)
    match optimizer:
        case "adamw":
            state = 2 * weights + 4 * len(sizes)
        case "sgd_momentum":
            state = weights
        case "lion":
            state = sizes.sum() * 4
        case _:
            large = sizes[sizes >= 4096]
            state = (2 * large + 8 * -(-large // 256)).sum() + 8 * sizes[sizes < 4096].sum() + 2048 * (len(large) > 0)
    return {"optimizer": state, "gradients": weights, "weights": weights}
