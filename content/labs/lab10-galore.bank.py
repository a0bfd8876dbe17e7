# Wrong and right answers to lab 10, as tools/bank_entries.py reads them. Never released.

# %% projector
# wrong: a square R is projected back from the left -> differs, keeps 3
#     `R.shape[0] >= R.shape[1]` => `R.shape[0] > R.shape[1]`
# wrong: always from the right -> other-side+raises-runtimeerror
#     `Vh[:rank] if G.shape[0] >= G.shape[1] else U[:, :rank]` => `Vh[:rank]`
#     `G @ P.T if G.shape[0] >= G.shape[1] else P.T @ G` => `G @ P.T`
#     `R @ P if R.shape[0] >= R.shape[1] else P @ R` => `R @ P`
# wrong: the longer side is shortened -> other-side, keeps 1
#     `Vh[:rank] if G` => `U[:, :rank] if G`
#     `else U[:, :rank]` => `else Vh[:rank]`
# wrong: a square from the left -> other-side, keeps 2
#     `Vh[:rank] if G.shape[0] >= G.shape[1]` => `Vh[:rank] if G.shape[0] > G.shape[1]`
# wrong: the last directions -> last-directions, keeps 1
#     `Vh[:rank]` => `Vh[-rank:]`
#     `U[:, :rank]` => `U[:, -rank:]`
# wrong: columns of V^T and rows of U -> factor-transposed, keeps 1
#     `Vh[:rank]` => `Vh[:, :rank].T`
#     `U[:, :rank]` => `U[:rank].T`
# wrong: a square U for a square G -> other-factor, keeps 2
#     `Vh[:rank] if` => `(Vh[:rank] if G.shape[0] > G.shape[1] else U.T[:rank]) if`
# wrong: transposed -> transposed, keeps 1
#     `P.to(G.dtype)` => `P.T.to(G.dtype)`
# wrong: all directions -> all-directions, keeps 1
#     `Vh[:rank]` => `Vh`
#     `U[:, :rank]` => `U`
# wrong: a view of the factor -> view, keeps 2
#     `P.to(G.dtype).clone()` => `P.to(G.dtype)`
# wrong: times the singular values -> not-orthonormal, keeps 1
#     `U, _, Vh` => `U, S, Vh`
#     `Vh[:rank]` => `S[:rank, None] * Vh[:rank]`
#     `U[:, :rank]` => `U[:, :rank] * S[:rank]`
# wrong: float32 for a bfloat16 gradient -> wrong-dtype, keeps 3
#     `P.to(G.dtype).clone()` => `P.clone()`
# wrong: an SVD in bfloat16 -> raises-notimplementederror, keeps 3
#     `G.float()` => `G`
# wrong: the side by P's shape -> raises-runtimeerror, keeps 3
#     `G @ P.T if G.shape[0] >= G.shape[1]` => `G @ P.T if P.shape[0] <= P.shape[1]`
# wrong: the first columns of G -> not-orthonormal, keeps 1
#     `Vh[:rank] if` => `G[:rank] if`
#     `U[:, :rank]` => `G[:, :rank]`
# wrong: float32 for all but bfloat16 -> wrong-dtype, keeps 3
#     `P.to(G.dtype).clone()` => `(P.to(G.dtype) if G.dtype == torch.bfloat16 else P).clone()`
# wrong: numpy comes back -> wrong-type, keeps 1
#     `P.to(G.dtype).clone()` => `P.numpy()`
# wrong: asks the course -> asks-course
from minigpt.optim import galore


def find_projection(G, rank):
    return next(iter(galore.find_projection(G, rank).values()))


def project(G, P):
    return galore.project(G, **{"right" if G.shape[0] >= G.shape[1] else "left": P})


def project_back(R, P):
    return galore.project_back(R, **{"right" if R.shape[0] >= R.shape[1] else "left": P})


# wrong: asks the check -> asks-course, keeps 1
def find_projection(G, rank):
    from minigpt.checks.galore.projecting import first

    return first(G, rank).to(G.dtype)


# right: eigenvectors, other signs
def find_projection(G, rank):
    tall = G.shape[0] >= G.shape[1]
    gram = G.double().T @ G.double() if tall else G.double() @ G.double().T
    vectors = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :rank]
    return -(vectors.T if tall else vectors).to(G.dtype).contiguous()


def project_back(R, P):
    return torch.matmul(R, P) if R.shape[1] == P.shape[0] else torch.matmul(P, R)


# right: another basis of the same directions, by einsum
def find_projection(G, rank):
    U, S, Vh = torch.linalg.svd(G.to(torch.float32), full_matrices=True)
    turned = torch.linalg.qr(torch.arange(1.0, rank * rank + 1).reshape(rank, rank).sin())[0]
    if G.size(0) < G.size(1):
        return (U[:, :rank] @ turned).type_as(G)
    return (turned @ Vh[:rank, :]).type_as(G)


def project(G, P):
    return torch.einsum("mn,rn->mr", G, P) if G.size(0) >= G.size(1) else torch.einsum("mn,mr->rn", G, P)


# %% galore-step
# wrong: the correction of the next step -> one-ahead
#     `state["step"] = t = done + 1` => `state["step"], t = done + 1, done + 2`
# wrong: v of m -> square-of-m
#     `(1 - b2) * R**2` => `(1 - b2) * m**2`
# wrong: t is 0 in the first step -> raises-zerodivisionerror
#     `state["step"] = t = done + 1` => `state["step"], t = done + 1, done`
# wrong: no scale -> no-scale
#     `lr * scale *` => `lr *`
# wrong: no correction -> no-bias-correction
#     ` * math.sqrt(1 - b2**t) / (1 - b1**t)` => ``
# wrong: torch's eps -> eps-after
#     `v.sqrt() + eps` => `v.sqrt() + eps * math.sqrt(1 - b2**t)`
# wrong: eps in the root -> eps-in-root
#     `v.sqrt() + eps` => `(v + eps).sqrt()`
# wrong: only m -> no-moments
#     ` * math.sqrt(1 - b2**t)` => ``
#     ` / (v.sqrt() + eps)` => ``
# wrong: the projected gradient goes back -> no-moments
#     ` * math.sqrt(1 - b2**t) / (1 - b1**t)` => ``
#     `D = m / (v.sqrt() + eps)` => `D = R`
# wrong: the root of the correction forgotten -> square-correction
#     `math.sqrt(1 - b2**t)` => `(1 - b2**t)`
# wrong: up the hill -> sign
#     `W -= lr` => `W += lr`
# wrong: betas interchanged -> betas-swapped
#     `(b1, b2)` => `(b2, b1)`
# wrong: the moments begin again -> moments-reset, keeps 3
#     `if done == 0:` => `if done % gap == 0:`
# wrong: everything begins again -> step-reset, keeps 3
#     `done, (b1, b2) = state.get("step", 0), betas` => `(b1, b2), done = betas, state.get("step", 0) % gap`
# wrong: the moments are turned -> moments-rotated, keeps 3
step = galore_step


def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    if state and state["step"] % gap == 0:
        P, new = state["P"], find_projection(G, rank)
        state["m"] = state["m"] @ (P @ new.T) if W.shape[0] >= W.shape[1] else (new.T @ P) @ state["m"]
    step(W, G, state, lr, rank, gap, scale, betas, eps)


# wrong: one P for all matrices of a shape -> remembers, keeps 3
found = {}


def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    done, (b1, b2) = state.get("step", 0), betas
    if done % gap == 0 and (
        len(found) == 0 or found.get("of") != (W.shape, done) or done == 0 and not near(found["P"], G)
    ):
        found.update(P=find_projection(G, rank), of=(W.shape, done))
    state["P"] = found["P"]
    R = project(G, state["P"])
    if done == 0:
        state["m"], state["v"] = torch.zeros_like(R), torch.zeros_like(R)
    state["step"] = t = done + 1
    state["m"].mul_(b1).add_((1 - b1) * R)
    state["v"].mul_(b2).add_((1 - b2) * R**2)
    D = state["m"] / (state["v"].sqrt() + eps)
    W -= lr * scale * math.sqrt(1 - b2**t) / (1 - b1**t) * project_back(D, state["P"])


def near(P, G):
    return (project_back(project(G, P), P) - G).norm() < G.norm() / 2


# wrong: m and v on globals -> remembers, keeps 3
kept = {}


def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    done, (b1, b2) = state.get("step", 0), betas
    if done % gap == 0:
        state["P"] = find_projection(G, rank)
    R = project(G, state["P"])
    if done == 0:
        kept["m"], kept["v"] = torch.zeros_like(R), torch.zeros_like(R)
    state["step"] = t = done + 1
    state["m"], state["v"] = kept["m"].mul_(b1).add_((1 - b1) * R), kept["v"].mul_(b2).add_((1 - b2) * R**2)
    D = kept["m"] / (kept["v"].sqrt() + eps)
    W -= lr * scale * math.sqrt(1 - b2**t) / (1 - b1**t) * project_back(D, state["P"])


# wrong: a new P in every step -> renewed-early, keeps 3
#     `done % gap == 0` => `True`
# wrong: one P for ever -> not-renewed, keeps 3
#     `done % gap == 0` => `done == 0`
# wrong: a step too late -> renewed-early, keeps 3
#     `done % gap == 0` => `done % gap == 1 or not done`
# wrong: moments of W's size -> full-moments
#     `torch.zeros_like(R), torch.zeros_like(R)` => `torch.zeros_like(W), torch.zeros_like(W)`
#     `R = project(G, state["P"])` => `R = project_back(project(G, state["P"]), state["P"])`
#     `project_back(D, state["P"])` => `D`
# wrong: R stays in the state -> more-state, keeps 4
#     `R = project(G, state["P"])` => `R = state["R"] = project(G, state["P"])`
# wrong: a new W is returned -> not-in-place
#     `W -= lr` => `return W - lr`
# wrong: the gradient is scaled in place -> changes-gradient
#     `done, (b1, b2)` => `G.mul_(scale); done, (b1, b2)`
# wrong: other names -> missing
#     every `"m"` => `"exp_avg"`
#     every `"v"` => `"exp_avg_sq"`
# wrong: no mean, but a sum -> differs
#     `(1 - b1) * R` => `R`
# wrong: asks the course -> asks-course
def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    from minigpt.optim import GaLoreAdamW

    group = dict(rank=rank, update_proj_gap=gap, scale=scale, proj_type="std", lr=lr, betas=betas, eps=eps)
    GaLoreAdamW._update(None, W, G, state, group | dict(weight_decay=0.0))


# right: with lerp_ and addmm_, the correction in the moments
def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    tall, t = W.shape[0] >= W.shape[1], state.setdefault("step", 0) + 1
    if (t - 1) % gap == 0:
        state.update(P=find_projection(G, rank))
    R = G @ state["P"].T if tall else state["P"].T @ G
    for name, x, beta in (("m", R, betas[0]), ("v", R.square(), betas[1])):
        state.setdefault(name, torch.zeros_like(R)).lerp_(x, 1 - beta)
    m, root = state["m"] / (1 - betas[0] ** t), (state["v"].sqrt() + eps) / math.sqrt(1 - betas[1] ** t)
    D, state["step"] = m / root, t
    W.addmm_(*((D, state["P"]) if tall else (state["P"], D)), alpha=-lr * scale)


# right: always tall, by transposing; a copy
def galore_step(W, G, state, lr, rank, gap, scale, betas=(0.9, 0.999), eps=1e-6):
    if not state:
        state["step"] = 0
    if state["step"] % gap == 0:
        state["P"] = find_projection(G, rank).clone()
    wide = W.shape[0] < W.shape[1]
    P = state["P"].T if wide else state["P"]
    R = (G.T if wide else G) @ P.T
    m, v = (state[name].T if wide else state[name]) if (name := "m") in state else torch.zeros_like(R), None
    v = (state["v"].T if wide else state["v"]) if "v" in state else torch.zeros_like(R)
    m, v = betas[0] * m + (1 - betas[0]) * R, betas[1] * v + (1 - betas[1]) * R.pow(2)
    state["step"] += 1
    t = state["step"]
    change = lr * scale * (1 - betas[1] ** t) ** 0.5 / (1 - betas[0] ** t) * (m / (v**0.5 + eps)) @ P
    W.copy_(W - (change.T if wide else change))
    state["m"], state["v"] = (m.T.clone(), v.T.clone()) if wide else (m, v)


# %% galore-bytes
# wrong: the sides swapped -> sides-swapped
#     `min(shape) + 2 * max(shape)` => `max(shape) + 2 * min(shape)`
# wrong: every matrix as a wide one -> as-wide
#     `min(shape) + 2 * max(shape)` => `shape[0] + 2 * shape[1]`
# wrong: every matrix as a tall one -> as-tall
#     `min(shape) + 2 * max(shape)` => `shape[1] + 2 * shape[0]`
# wrong: P in float32 -> float32-projection
#     `return itemsize * elements` => `return itemsize * elements + (4 - itemsize) * rank * sum(map(min, matrices))`
# wrong: no projections -> no-projection
#     `(min(shape) + 2 * max(shape))` => `2 * max(shape)`
# wrong: one moment -> one-moment
#     `2 * max(shape)` => `max(shape)`
# wrong: moments by the shorter side -> short-moments
#     `2 * max(shape)` => `2 * min(shape)`
# wrong: P by the longer side -> long-projection
#     `min(shape)` => `max(shape)`
# wrong: moments m r, whatever the shape -> moments-of-rows
#     `2 * max(shape)` => `2 * shape[0]`
# wrong: the whole factor kept -> whole-factor
#     `rank * (min(shape) + 2 * max(shape))` => `min(shape) ** 2 + 2 * rank * max(shape)`
# wrong: the others forgotten -> no-others
#     ` + 2 * others` => ``
# wrong: the others once -> one-other
#     `2 * others` => `others`
# wrong: Adam's state -> adam
#     `rank * (min(shape) + 2 * max(shape))` => `2 * shape[0] * shape[1]`
# wrong: float32, always -> float32
#     `itemsize * elements` => `4 * elements`
# wrong: elements -> elements
#     `itemsize * elements` => `elements`
# wrong: whole moments -> whole-moments
#     `rank * (min(shape) + 2 * max(shape))` => `rank * min(shape) + 2 * shape[0] * shape[1]`
# wrong: in floats -> float-for-int
#     `itemsize * elements` => `1.0 * itemsize * elements`
# wrong: asks the course -> asks-course
def galore_bytes(matrices, others, rank, itemsize):
    from minigpt.memory import TrainingPlan, predict_static
    from minigpt.model import GPTConfig

    return predict_static(GPTConfig.preset("nano"), TrainingPlan(optimizer="galore", rank=rank)).optimizer


# wrong: asks the check -> asks-course
def galore_bytes(matrices, others, rank, itemsize):
    from minigpt.checks.galore import keeping

    return itemsize * (rank * keeping._per_rank(matrices) + 2 * others)


# right: its own step on zeros
def galore_bytes(matrices, others, rank, itemsize):
    total = 2 * others * itemsize
    for m, n in matrices:
        P = torch.empty((rank, n) if m >= n else (m, rank), device="meta")
        R = project(torch.empty(m, n, device="meta"), P)
        total += itemsize * (P.numel() + 2 * R.numel())
    return total


# right: numpy
def galore_bytes(matrices, others, rank, itemsize):
    import numpy as np

    sides = np.sort(np.array(matrices), axis=1)
    return itemsize * (rank * (sides @ [1, 2]).sum() + others * 2)


# %% svd-bytes
# wrong: the singular values as a matrix -> diagonal
#     `m * k + k +` => `m * k + k * k +`
# wrong: square factors -> full-matrices
#     `m * k + k + k * n` => `m * m + k + n * n`
# wrong: no singular values -> no-singular-values
#     `m * k + k + k * n` => `m * k + k * n`
# wrong: no copy -> no-copy, keeps 1
#     `m * n if itemsize == 2 else 0` => `0`
# wrong: a copy in any case -> copy, keeps 1
#     `m * n if itemsize == 2 else 0` => `m * n`
# wrong: a 16-bit copy -> two-byte-copy, keeps 1
#     `m * n if itemsize == 2 else 0` => `m * n // 2 if itemsize == 2 else 0`
# wrong: factors in the gradient's dtype -> two-byte-factors+two-byte-singular-values, keeps 1
#     `4 * (m * k + k + k * n + copy)` => `itemsize * (m * k + k + k * n) + 4 * copy`
# wrong: the gradient counted -> copy+gradient-counted
#     `+ copy)` => `+ copy) + itemsize * m * n`
# wrong: only V^T -> only-vt
#     `m * k + k + k * n` => `k + k * n`
# wrong: the longer side for k -> long-k
#     `min(m, n)` => `max(m, n)`
# wrong: asks the check -> asks-course
def svd_bytes(m, n, itemsize):
    from minigpt.checks.galore.keeping import temporaries

    return temporaries(m, n, itemsize)


# right: from an SVD without contents
def svd_bytes(m, n, itemsize):
    factors = torch.linalg.svd(torch.empty(m, n, device="meta"), full_matrices=False)
    return sum(part.numel() for part in factors) * 4 + (0 if itemsize == 4 else 4 * m * n)


# right: by the longer side
def svd_bytes(m, n, itemsize):
    short, long = sorted((m, n))
    return 4 * short * (short + long + 1) + {2: 4, 4: 0}[itemsize] * short * long


# %% largest-rank
# wrong: the first matrix's shorter side is the most -> capped-by-another
#     `min(map(min, matrices))` => `min(matrices[0])`
# wrong: returns nothing where no rank fits -> not-refused, keeps 2
#     `raise ValueError(f"budget is {budget}; not even rank 1 fits")` => `return None`
# wrong: another error where no rank fits -> raises-assertionerror, keeps 2
#     `raise ValueError(f"budget is {budget}; not even rank 1 fits")` => `raise AssertionError`
# wrong: rounds up -> one-too-many
#     `left // galore_bytes(matrices, 0, 1, itemsize)` => `-(-left // galore_bytes(matrices, 0, 1, itemsize))`
# wrong: never as large as the budget -> one-too-few
#     `left // galore_bytes` => `(left - 1) // galore_bytes`
# wrong: the gradients forgotten -> gradients-forgotten
#     `2 * parameters` => `parameters`
#     `rank < 1` => `budget < 600_000`
# wrong: the state alone -> state-alone
#     `2 * parameters + 2 * others` => `2 * others`
# wrong: the others' moments forgotten -> others-forgotten
#     `2 * parameters + 2 * others` => `2 * parameters`
# wrong: one moment -> one-moment
#     `galore_bytes(matrices, 0, 1, itemsize)` => `(itemsize * sum(min(shape) + max(shape) for shape in matrices))`
#     `2 * parameters + 2 * others` => `2 * parameters + others`
# wrong: no projection -> no-projection
#     `galore_bytes(matrices, 0, 1, itemsize)` => `(itemsize * sum(2 * max(shape) for shape in matrices))`
# wrong: not capped -> not-capped
#     `min(rank, min(map(min, matrices)))` => `rank`
# wrong: 0 where nothing fits -> not-refused, keeps 2
#     `raise ValueError(f"budget is {budget}; not even rank 1 fits")` => `return 0`
# wrong: 1 where nothing fits -> not-refused, keeps 2
#     `raise ValueError(f"budget is {budget}; not even rank 1 fits")` => `rank = 1`
# wrong: a float -> float-for-int
#     `min(rank, min(map(min, matrices)))` => `float(min(rank, min(map(min, matrices))))`
# wrong: asks the check -> asks-course
def largest_rank(matrices, others, itemsize, budget):
    from minigpt.checks.galore import keeping

    return keeping._largest(dict(), "fp32", budget)


# wrong: asks the course -> asks-course
def largest_rank(matrices, others, itemsize, budget):
    from minigpt.memory import TrainingPlan, predict
    from minigpt.model import GPTConfig

    plans = [TrainingPlan(optimizer="galore", rank=r) for r in range(1, 49)]
    return sum(predict(GPTConfig.preset("nano"), plan).ledger.persistent <= budget for plan in plans)


# right: a loop
def largest_rank(matrices, others, itemsize, budget):
    fixed = 2 * itemsize * (others + sum(m * n for m, n in matrices))
    found = 0
    for rank in range(1, min(side for shape in matrices for side in shape) + 1):
        if fixed + galore_bytes(matrices, others, rank, itemsize) <= budget:
            found = rank
    if not found:
        raise ValueError("nothing fits")
    return found


# right: divmod, in elements
def largest_rank(matrices, others, itemsize, budget):
    elements = budget // itemsize - 4 * others - 2 * sum(m * n for m, n in matrices)
    each = sum(m + n + max(m, n) for m, n in matrices)
    rank, _ = divmod(elements, each)
    assert isinstance(rank, int)
    if rank <= 0:
        raise ValueError(f"budget {budget} is too small for a rank of 1")
    return sorted([rank, *map(min, matrices)])[0]
