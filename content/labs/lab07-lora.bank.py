# Wrong and right answers to lab 07, as tools/bank_entries.py reads them. Never released.

# %% lora-linear
# wrong: the scaling forgotten -> no-scale, keeps 1
#     `self.scaling * update` => `update`
# wrong: alpha // rank -> scale-whole, keeps 1
#     `alpha / rank` => `alpha // rank`
# wrong: alpha * rank -> scale-product, keeps 1
#     `alpha / rank` => `alpha * rank`
# wrong: rank / alpha -> scale-inverse, keeps 1
#     `alpha / rank` => `rank / alpha`
# wrong: rsLoRA's scaling -> scale-root, keeps 1
#     `alpha / rank` => `alpha / math.sqrt(rank)`
# wrong: the base scaled too -> base-scaled, keeps 1
#     `y + self.scaling * update` => `self.scaling * (y + update)`
#     `if self.merged:` => `if self.merged or not self.lora_B.any():`
# wrong: the starts swapped -> a-zero, keeps 3
#     `torch.empty` => `torch.zeros`
#     `torch.zeros` => `torch.empty`
#     `kaiming_uniform_(self.lora_A` => `kaiming_uniform_(self.lora_B`
# wrong: B random -> b-not-zero, keeps 3
#     `torch.zeros` => `torch.randn`
# wrong: both zeros -> both-zero, keeps 3
#     `torch.empty` => `torch.zeros`
#     `nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))` => ``
# wrong: kaiming without its a -> kaiming-without-a, keeps 3
#     `, a=math.sqrt(5)` => ``
# wrong: A normal -> normal-draw, keeps 3
#     `kaiming_uniform_(self.lora_A, a=math.sqrt(5))` => `normal_(self.lora_A, std=1 / math.sqrt(rank))`
# wrong: the fan of the turned matrix -> bound-of-rank, keeps 3
#     `a=math.sqrt(5)` => `a=math.sqrt(5), mode="fan_out"`
# wrong: a fixed seed -> same-draw, keeps 3
#     `nn.init` => `torch.manual_seed(0); nn.init`
# wrong: the base trains too -> not-frozen
#     `base.requires_grad_(False)` => ``
# wrong: the base's bias trains -> not-frozen
#     `base.requires_grad_(False)` => `base.weight.requires_grad_(False)`
# wrong: everything frozen at the end -> adapters-frozen
#     `a=math.sqrt(5))` => `a=math.sqrt(5)); self.requires_grad_(False)`
# wrong: A and B swapped -> swapped
#     `rank, base.in_features` => `base.out_features, rank`
#     `base.out_features, rank` => `rank, base.in_features`
#     `x.float(), self.lora_A), self.lora_B` => `x.float(), self.lora_B), self.lora_A`
# wrong: A as (in, rank) -> transposed
#     `rank, base.in_features` => `base.in_features, rank`
#     `base.out_features, rank` => `rank, base.out_features`
#     `x.float(), self.lora_A), self.lora_B` => `x.float(), self.lora_A.T), self.lora_B.T`
# wrong: the product transposed -> shapes-do-not-fit
#     `F.linear(F.linear(x.float(), self.lora_A), self.lora_B)` => `x.float() @ (self.lora_B @ self.lora_A)`
# wrong: x is not cast -> no-cast, keeps 2
#     `x.float()` => `x`
# wrong: adapters in the base's type -> wrong-dtype, keeps 2
#     `dtype=torch.float32` => `dtype=base.weight.dtype`
#     `x.float()` => `x`
# wrong: a float32 result from a bf16 base -> wrong-dtype, keeps 3
#     `.to(y.dtype)` => ``
# wrong: plain tensors -> no-parameter
#     every `nn.Parameter` => `torch.Tensor.requires_grad_`
# wrong: the input detached -> adapter-detached, keeps 1
#     `x.float()` => `x.detach().float()`
# wrong: the base under no_grad -> base-detached, keeps 1
#     `y = self.base(x)` => `with torch.no_grad(): y = self.base(x)`
# wrong: merged is never asked -> adapter-although-merged, keeps 1
#     `if self.merged:` => `if False:`
# wrong: a copy of the base -> base-copied
#     `base.requires_grad_(False)` => `import copy; self.base = copy.deepcopy(base).requires_grad_(False)`
# wrong: adapters without a device -> other-device, keeps 3
#     `device=base.weight.device, ` => ``
# wrong: the adapter computed in the base's type -> low-precision, keeps 3
#     `F.linear(x.float(), self.lora_A), self.lora_B` => `F.linear(x, self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype)`
# wrong: the update in the base's type -> low-precision, keeps 3
#     `F.linear(x.float(), self.lora_A), self.lora_B` => `x, (self.lora_B @ self.lora_A).to(x.dtype)`
# wrong: the input of B in the base's type -> low-precision, keeps 3
#     `F.linear(x.float(), self.lora_A), self` => `F.linear(x.float(), self.lora_A).to(x.dtype).float(), self`
# wrong: the update made once -> stale-update, keeps 1
#     `update = ` => `self.product = getattr(self, "product", self.lora_B @ self.lora_A); update = `
#     `F.linear(x.float(), self.lora_A), self.lora_B` => `x.float(), self.product`
# wrong: the update kept on the layer -> kept-on-the-layer, keeps 1
#     `update = ` => `self.product = self.lora_B @ self.lora_A; update = `
#     `F.linear(x.float(), self.lora_A), self.lora_B` => `x.float(), self.product`
# wrong: a copy of W kept on the layer -> kept-on-the-layer, keeps 1
#     `y = self.base(x)` => `self.before = self.base.weight.detach().clone(); y = self.base(x)`
# wrong: only batches of sequences -> raises-valueerror, keeps 1
#     `y = self.base(x)` => `batch, length, width = x.shape; y = self.base(x)`
# wrong: a view of what may be no view -> raises-runtimeerror, keeps 2
#     `y = self.base(x)` => `y = self.base(x.view(-1, x.shape[-1])).view(*x.shape[:-1], -1)`
# wrong: the bias twice -> differs
#     `return (y + self.scaling` => `return (y + (0 if self.base.bias is None else self.base.bias) + self.scaling`
# wrong: the course's own -> asks-course
from minigpt.lora import LoRALinear


# right: the scaling as a buffer
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged = base.requires_grad_(False), False
        self.register_buffer("scaling", torch.tensor(alpha / rank))
        A = torch.empty(rank, base.in_features, device=base.weight.device)
        self.lora_A = nn.Parameter(nn.init.kaiming_uniform_(A, a=math.sqrt(5)))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x):
        if self.merged:
            return self.base(x)
        y = self.base(x)
        return y + (self.scaling.to(x.device) * (x.float() @ self.lora_A.T @ self.lora_B.T)).to(y.dtype)


# right: drawn by hand, products with @
class LoRALinear(torch.nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        for parameter in base.parameters():
            parameter.requires_grad = False
        self.base, self.merged, self.rank, self.alpha = base, False, rank, alpha
        bound = base.in_features**-0.5
        device = base.weight.device
        self.lora_A = nn.Parameter(torch.rand(rank, base.in_features, device=device) * 2 * bound - bound)
        self.lora_B = nn.Parameter(torch.zeros((base.out_features, rank), device=device))

    def forward(self, x):
        y = self.base(x)
        if not self.merged:
            adapted = (x.to(torch.float32) @ self.lora_A.t()) @ self.lora_B.t()
            y = (y.float() + adapted * self.alpha / self.rank).to(y.dtype)
        return y


# right: the update as a matrix
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.merged, self.scaling = False, alpha / rank
        A = nn.init.uniform_(torch.empty(rank, base.in_features), -1, 1) / base.in_features**0.5
        self.lora_A = nn.Parameter(A.to(base.weight.device))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank, dtype=torch.float32))
        self.base = base
        self.base.weight.requires_grad_(False)
        if self.base.bias is not None:
            self.base.bias.requires_grad_(False)

    def forward(self, x):
        if self.merged:
            return self.base(x)
        return self.base(x).add(F.linear(x.float(), self.scaling * self.lora_B @ self.lora_A)).type(x.dtype)


# %% inject
# wrong: the head adapted -> head-adapted
#     ` and name.startswith("blocks.")` => ``
# wrong: the rest left trainable -> not-frozen
#     `model.requires_grad_(False)` => ``
# wrong: frozen at the end -> adapters-frozen
#     `model.requires_grad_(False)` => ``
#     `return names` => `model.requires_grad_(False); return names`
# wrong: only linears frozen -> not-frozen
#     `model.requires_grad_(False)` => `[linear.requires_grad_(False) for linear in linears.values()]`
# wrong: targets ignored -> no-target
#     ` if targets is None or name.split(".")[-1] in targets` => ``
# wrong: None is q and v, as papers have it -> names-missing
#     `targets is None or name.split(".")[-1] in targets` => `name.split(".")[-1] in (targets or ["q_proj", "v_proj"])`
# wrong: last names returned -> short-names
#     `return names` => `return sorted({name.split(".")[-1] for name in names})`
# wrong: only the first block -> names-missing
#     `"blocks."` => `"blocks.0."`
# wrong: rank and alpha swapped -> rank-and-alpha
#     `linears[name], rank, alpha` => `linears[name], alpha, rank`
# wrong: alpha not handed on -> no-scale
#     `linears[name], rank, alpha` => `linears[name], rank, rank`
# wrong: an unknown target passed over -> not-refused, keeps 2
#     `targets is not None and not set(targets) <= known` => `False`
# wrong: frozen before it refuses -> changed-first, keeps 2
#     `known = {` => `model.requires_grad_(False); known = {`
# wrong: names, and no layers -> named-not-adapted
#     `model.set_submodule(name, LoRALinear(linears[name], rank, alpha))` => `pass`
# wrong: nothing returned -> returns-nothing
#     `return names` => ``
# wrong: an empty list means all -> empty-means-all, keeps 2
#     `names = [name for name in linears if targets is None` => `names = [name for name in linears if not targets`
# wrong: targets as parts of names -> not-refused, keeps 2
#     `targets is not None and not set(targets) <= known` => `any(t not in str(known) for t in targets or [])`
# wrong: targets looked for in the text of all names -> not-refused, keeps 2
#     `targets is not None and not set(targets) <= known` => `any(t not in str(list(linears)) for t in targets or [])`
# wrong: modules of any kind as targets -> not-refused, keeps 2
#     `known = {name.split(".")[-1] for name in linears}` => `known = set(".".join(linears).split("."))`
# wrong: the adapted layers train, base and all -> not-frozen
#     `LoRALinear(linears[name], rank, alpha)` => `LoRALinear(linears[name], rank, alpha).requires_grad_(True)`
# wrong: the first target is enough -> not-refused, keeps 2
#     `not set(targets) <= known` => `not set(targets) & known`
# wrong: an alpha of 16, always -> differs
#     `linears[name], rank, alpha` => `linears[name], rank, 16`
# wrong: the model in evaluation mode, and its norms drawn anew -> differs
#     `return names` => `nn.init.normal_(model.norm.weight); return names`
# wrong: a layer without scaling, from part 1 -> earlier-part+no-scale
class LoRALinear(LoRALinear):
    def __init__(self, base, rank, alpha):
        super().__init__(base, rank, rank)


# wrong: a layer whose A is a layer, from part 1 -> earlier-part+no-parameter
class LoRALinear(LoRALinear):
    def __init__(self, base, rank, alpha):
        super().__init__(base, rank, alpha)
        del self.lora_A
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)


# wrong: one adapter for all blocks -> shared-adapter
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    first = {}
    for name in names:
        layer = LoRALinear(linears[name], rank, alpha)
        shared = first.setdefault(name.split(".")[-1], layer)
        layer.lora_A, layer.lora_B = shared.lora_A, shared.lora_B
        model.set_submodule(name, layer)
    return names


# wrong: the course's own -> asks-course
def inject(model, rank, alpha, targets=None):
    from minigpt.lora import inject

    return inject(model, rank, alpha, targets or "all-linear")


# right: setattr on the parents, block by block
def inject(model, rank, alpha, targets=None):
    found = []
    for i, block in enumerate(model.blocks):
        for part in ("attn", "mlp"):
            for last, child in getattr(block, part).named_children():
                if targets is None or last in targets:
                    found.append((f"blocks.{i}.{part}.{last}", getattr(block, part), last, child))
    for target in targets or []:
        if target not in [last for _, _, last, _ in found]:
            raise ValueError(f"there is no {target}")
    for parameter in model.parameters():
        parameter.requires_grad = False
    for _, parent, last, child in found:
        setattr(parent, last, LoRALinear(child, rank, alpha))
    return [name for name, *_ in found]


# right: the head told by its weight, names sorted
def inject(model, rank, alpha, targets=None):
    embedding = model.get_input_embeddings().weight if hasattr(model, "get_input_embeddings") else None
    embedding = model.token_embedding.weight if embedding is None else embedding
    chosen = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module.weight is not embedding:
            if targets is None or any(name.endswith("." + target) for target in targets):
                chosen[name] = module
    missing = [t for t in targets or [] if not any(name.endswith("." + t) for name in chosen)]
    if missing:
        raise ValueError(f"targets has {missing}")
    model.requires_grad_(False)
    for name, module in chosen.items():
        model.set_submodule(name, LoRALinear(module, rank, alpha))
    return sorted(chosen)


# %% merge
# wrong: without scaling -> no-scale
#     every `layer.scaling * ` => ``
# wrong: merges as often as asked -> not-refused, keeps 2
#     `if layer.merged:` => `if False:`
#     `if not layer.merged:` => `if False:`
# wrong: a second merge is passed over -> not-refused, keeps 2
#     `raise ValueError("the layer is merged already")` => `return`
#     `raise ValueError("the layer is not merged")` => `return`
# wrong: the flag forgotten -> flag
#     `layer.merged = True` => ``
#     `layer.merged = False` => ``
# wrong: refused too late -> merged-twice, keeps 2
#     `raise ValueError("the layer is merged already")` => `layer.merged = False; merge(layer); raise ValueError`
# wrong: the product transposed -> raises-runtimeerror
#     every `layer.lora_B @ layer.lora_A` => `layer.lora_A.T @ layer.lora_B.T`
# wrong: taken away -> subtracted+added-again
#     `+=` => `-=`
#     `-=` => `+=`
# wrong: W is lost -> no-base+still-merged
#     `+=` => `=`
#     `layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()` => ``
# wrong: a copy of W kept -> old-copy, keeps 1
#     `layer.base.weight.data +=` => `layer.before = layer.base.weight.data.clone(); layer.base.weight.data +=`
#     `-= layer.scaling * (layer.lora_B @ layer.lora_A).detach()` => `= layer.before`
# wrong: W swapped for another, and kept -> hidden-copy, keeps 1
#     `layer.base.weight.data +=` => `w = layer.base.weight; layer.old, w.data = [w.data], w.data.clone(); w.data +=`
# wrong: the update kept for unmerge -> hidden-copy, keeps 1
#     `layer.base.weight.data += layer` => `layer.update = layer`
#     `layer.merged = True` => `layer.base.weight.data += layer.update; layer.merged = True`
#     `-= layer.scaling * (layer.lora_B @ layer.lora_A).detach()` => `-= layer.update`
# wrong: a copy of W kept elsewhere -> hidden-copy, keeps 1
#     `layer.base.weight.data +=` => `merge.kept = layer.base.weight.data.clone(); layer.base.weight.data +=`
# wrong: a bf16 base turned float32 -> base-of-another-type
#     `layer.base.weight.data +=` => `layer.base.weight.data = layer.base.weight.data +`
#     `layer.base.weight.data -=` => `layer.base.weight.data = layer.base.weight.data -`
# wrong: a flat view of what may have none -> raises-runtimeerror, keeps 1
#     `layer.base.weight.data +=` => `layer.base.weight.data.view(-1).view(-1, layer.base.in_features)[:] +=`
# wrong: unmerge only turns the flag -> still-merged, keeps 1
#     `layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()` => ``
# wrong: unmerge without scaling -> no-scale, keeps 1
#     `-= layer.scaling * (` => `-= (`
# wrong: the adapter thrown away -> adapter-changed+still-merged
#     `layer.merged = True` => `layer.merged = True; layer.lora_B.data.zero_()`
# wrong: merged with autograd watching -> autograd-watches
#     every `weight.data` => `weight`
#     every `.detach()` => ``
# wrong: in place, with autograd watching -> not-frozen, keeps 1
#     `data += layer` => `add_(layer`
#     `data -= layer` => `sub_(layer`
#     every `.detach()` => `)`
# wrong: a layer without a base, from part 1 -> earlier-part+no-base-layer
class LoRALinear(LoRALinear):
    def __init__(self, base, rank, alpha):
        super().__init__(base, rank, alpha)
        del self.base


# wrong: a layer whose A is (in, rank), from part 1 -> earlier-part+transposed
class LoRALinear(LoRALinear):
    def __init__(self, base, rank, alpha):
        super().__init__(base, rank, alpha)
        self.lora_A = nn.Parameter(self.lora_A.data.T.contiguous())


# right: under no_grad, in place
@torch.no_grad()
def merge(layer):
    if layer.merged is True:
        raise ValueError("it is merged already; call unmerge first")
    weight = torch.addmm(layer.base.weight.float(), layer.lora_B, layer.lora_A, alpha=layer.scaling)
    layer.base.weight.copy_(weight)
    layer.merged = True


@torch.no_grad()
def unmerge(layer):
    if layer.merged is not True:
        raise ValueError("it is not merged; call merge first")
    layer.base.weight -= layer.scaling * layer.lora_B @ layer.lora_A
    layer.merged = False


# right: a helper with a sign
def write(layer, sign):
    if layer.merged == (sign > 0):
        raise ValueError(f"merged is {layer.merged}")
    change = torch.einsum("or,ri->oi", layer.lora_B.detach(), layer.lora_A.detach()) * layer.scaling
    weight = layer.base.weight.detach()
    layer.base.weight = nn.Parameter((weight + sign * change).to(weight.dtype), requires_grad=False)
    layer.merged = sign > 0


def merge(layer):
    write(layer, 1)


def unmerge(layer):
    write(layer, -1)


# %% adapter-parameters
# wrong: r * in * out -> rank-in-out
#     `C + q` => `C * q`
#     every `C + kv` => `C * kv`
#     `q + C` => `q * C`
#     `C + inner` => `C * inner`
# wrong: MHA for grouped heads -> wide-kv
#     `config.get("num_key_value_heads", heads)` => `heads`
# wrong: head_dim as width / heads -> head-dim-ignored
#     `config.get("head_dim", C // heads)` => `C // heads`
# wrong: only one block -> one-block
#     `config["num_hidden_layers"] * ` => ``
# wrong: the rank forgotten -> no-rank
#     `rank * ` => ``
# wrong: all seven, always -> all-seven
#     `for name in targets` => `for name in sides`
# wrong: the head as well -> head-adapted
#     `return config` => `return rank * (C + config["vocab_size"]) + config`
# wrong: the gate forgotten -> no-gate-proj
#     `"gate_proj", ` => ``
#     `sides[name]` => `sides.get(name, 0)`
# wrong: a float -> float-for-int
#     `C // heads` => `C / heads`
# wrong: o_proj square -> square-o
#     `q + C` => `C + C`
# wrong: only A -> only-a
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    q = heads * config.get("head_dim", C // heads)
    ins = dict(q_proj=C, k_proj=C, v_proj=C, o_proj=q, gate_proj=C, up_proj=C, down_proj=inner)
    return config["num_hidden_layers"] * sum(rank * ins[t] for t in targets)


# wrong: a square MLP -> all-square
def adapter_parameters(config, rank, targets):
    return config["num_hidden_layers"] * rank * 2 * config["hidden_size"] * len(targets)


# wrong: asks the course -> asks-course
def adapter_parameters(config, rank, targets):
    from minigpt.lora import adapter_parameters

    return adapter_parameters({"model_type": "llama", **config}, rank, targets)


# right: pairs of sides
def adapter_parameters(config, rank, targets):
    C, inner, heads = (config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads"))
    d = config["head_dim"] if config.get("head_dim") else C // heads
    kv_heads = config["num_key_value_heads"] if "num_key_value_heads" in config else heads
    total = 0
    for _ in range(config["num_hidden_layers"]):
        for target in targets:
            n_in, n_out = C, C
            if target in ("gate_proj", "up_proj"):
                n_out = inner
            elif target == "down_proj":
                n_in = inner
            elif target == "q_proj":
                n_out = heads * d
            elif target == "o_proj":
                n_in = heads * d
            else:
                n_out = kv_heads * d
            total += rank * n_in + n_out * rank
    return total


# right: numpy
def adapter_parameters(config, rank, targets):
    import numpy as np

    C, heads = config["hidden_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    widths = {"q": heads * d, "o": heads * d, "k": config.get("num_key_value_heads", heads) * d}
    widths["v"] = widths["k"]
    others = np.array([widths.get(t[0], config["intermediate_size"]) if t[1] == "_" else config["intermediate_size"]
                       for t in targets])  # fmt: skip
    return (rank * config["num_hidden_layers"] * (C + others)).sum()


# %% lora-buckets
# wrong: adapters at 2 bytes -> two-byte-adapters, keeps 2
#     `"trainable": 4` => `"trainable": 2`
# wrong: everything at 2 bytes -> two-byte-adapters+two-byte-gradients+four-byte-moments
#     `"trainable": 4` => `"trainable": 2`
#     `"gradients": 4` => `"gradients": 2`
#     `8 * adapters` => `4 * adapters`
# wrong: gradients for all weights -> frozen-gradients, keeps 2
#     `"gradients": 4 * adapters` => `"gradients": 4 * adapters + 2 * parameters`
# wrong: moments for all weights -> frozen-moments, keeps 2
#     `8 * adapters` => `8 * adapters + 4 * parameters`
# wrong: a float32 base -> float32-base, keeps 2
#     `2 * parameters` => `4 * parameters`
# wrong: no step counts -> no-step-counts, keeps 2
#     ` + 4 * tensors` => ``
# wrong: a step count for each pair -> step-count-a-layer, keeps 2
#     `2 * len(targets)` => `len(targets)`
# wrong: one moment -> four-byte-moments, keeps 2
#     `8 * adapters` => `4 * adapters`
# wrong: adapters in the frozen part too -> adapters-in-frozen, keeps 2
#     `2 * parameters` => `2 * parameters + 4 * adapters`
# wrong: a master copy -> master-copy, keeps 2
#     `8 * adapters` => `12 * adapters`
# wrong: MHA in the adapters -> wide-kv
#     `(config,` => `({**config, "num_key_value_heads": config["num_attention_heads"]},`
# wrong: asks the course -> asks-course
def lora_buckets(config, parameters, rank, targets):
    from minigpt.memory import TrainingPlan, predict

    names = ",".join(target.split("_")[0] for target in targets)
    plan = TrainingPlan(method="lora", precision="bf16", rank=rank, targets=names)
    step = predict({"model_type": "llama", **config}, plan)
    return {"frozen": step.frozen, "trainable": step.trainable, "gradients": step.ledger.gradients,
            "optimizer": step.ledger.optimizer}  # fmt: skip


# right: 16 bytes, divided
def lora_buckets(config, parameters, rank, targets):
    each = 4 * adapter_parameters(config, rank, targets)
    steps = sum(2 * 4 for _ in range(config["num_hidden_layers"]) for _ in targets)
    return dict(optimizer=each + each + steps, gradients=each, trainable=each, frozen=parameters * 16 // 8)


# right: tensor by tensor, without the function above
def lora_buckets(config, parameters, rank, targets):
    C, heads = config["hidden_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    wide = {"q_proj": heads, "o_proj": heads}
    sizes = []
    for target in targets * config["num_hidden_layers"]:
        other = wide.get(target, config.get("num_key_value_heads", heads)) * d
        if target in ("gate_proj", "up_proj", "down_proj"):
            other = config["intermediate_size"]
        sizes += [rank * C, rank * other]
    optimizer = sum(4 + 4 * 2 * size for size in sizes)
    return {"frozen": parameters + parameters, "trainable": 4 * sum(sizes), "gradients": 4 * sum(sizes),
            "optimizer": optimizer}  # fmt: skip


# %% three-regimes
# wrong: 16 bytes for all -> float32-full, keeps 1
#     `(2 + 2 + 4)` => `16`
# wrong: adapters at 2 bytes -> eight-byte-adapters
#     `4 + 4 + 8` => `2 + 2 + 4`
# wrong: gradients for frozen weights -> frozen-gradients, keeps 1
#     `2 * parameters + trained` => `(2 + 2) * parameters + trained`
# wrong: half a byte for everything -> all-in-4-bits-no-scales, keeps 1
#     `linears // 2 + 4 * (linears // 64)` => `parameters // 2`
#     ` + 2 * (parameters - linears)` => ``
# wrong: no scales -> no-scales, keeps 1
#     ` + 4 * (linears // 64)` => ``
# wrong: 16-bit scales -> two-byte-scales, keeps 1
#     `4 * (linears // 64)` => `2 * (linears // 64)`
# wrong: embeddings in 4 bits -> all-in-4-bits, keeps 1
#     `linears // 2 + 4 * (linears // 64)` => `parameters // 2 + 4 * (parameters // 64)`
#     ` + 2 * (parameters - linears)` => ``
# wrong: embeddings forgotten -> no-rest, keeps 1
#     ` + 2 * (parameters - linears)` => ``
# wrong: adapters' weights alone -> adapters-weights-alone
#     `4 + 4 + 8` => `4`
# wrong: double quantization -> double-quantization, keeps 1
#     `4 * (linears // 64)` => `linears // 64 + 4 * (linears // 64 // 256)`
# wrong: in GB -> in-gb
#     `(2 + 2 + 4) * parameters` => `8 * parameters / 1e9`
#     `2 * parameters + trained` => `(2 * parameters + trained) / 1e9`
#     `four_bit + 2 * (parameters - linears) + trained` => `(four_bit + 2 * (parameters - linears) + trained) / 1e9`
# right: floats
def three_regimes(parameters, linears, adapters):
    adapted = adapters * (4 + 4 + 4 + 4)
    rest = parameters - linears
    return {"full": parameters * 2.0 * 4, "lora": 2.0 * parameters + adapted,
            "qlora": (4 + 32 / 64) / 8 * linears + 2 * rest + adapted}  # fmt: skip


# right: numpy, with the step counts nobody asked for
def three_regimes(parameters, linears, adapters):
    import numpy as np

    P, n, N = (np.int64(value) for value in (parameters, linears, adapters))
    regimes = {"full": 8 * P, "lora": 2 * P + 16 * N, "qlora": n // 2 + n // 64 * 4 + (P - n) * 2 + 16 * N}
    return {regime: nbytes + 4 * 560 for regime, nbytes in regimes.items()}
