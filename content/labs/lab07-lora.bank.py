# Wrong and right answers to lab 07, for tools/bank.py. Never released.
# ruff: noqa: E402, F811, F821

# %% exercise=lora-linear wrong="the scaling forgotten" verdict=no-scale points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged = base.requires_grad_(False), False
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T).to(y.dtype)


# %% exercise=lora-linear wrong="alpha * rank" verdict=scale-product points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha * rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="rank / alpha" verdict=scale-inverse points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, rank / alpha
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="rsLoRA's scaling" verdict=scale-root points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / math.sqrt(rank)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the base scaled too" verdict=base-scaled points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        if self.merged or not self.lora_B.any():
            return y
        return (self.scaling * (y + x.float() @ self.lora_A.T @ self.lora_B.T)).to(y.dtype)


# %% exercise=lora-linear wrong="the starts swapped" verdict=a-zero points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.empty(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_B, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="B random" verdict=b-not-zero points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.empty(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        nn.init.kaiming_uniform_(self.lora_B, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="both zeros" verdict=both-zero points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="kaiming without its a" verdict=kaiming-without-a points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A)

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="A normal" verdict=normal-draw points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(rank))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the fan of the turned matrix" verdict=bound-of-rank points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5), mode="fan_out")

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="a fixed seed" verdict=same-draw points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        torch.manual_seed(0)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the base trains too" verdict=not-frozen
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base, False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the base's bias trains" verdict=not-frozen
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base, False, alpha / rank
        base.weight.requires_grad = False
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="everything frozen at the end" verdict=adapters-frozen
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base, False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.requires_grad_(False)

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="A and B swapped" verdict=swapped
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_B = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_A = nn.Parameter(torch.empty(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_B.T @ self.lora_A.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="A as (in, rank)" verdict=transposed
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(base.in_features, rank))
        self.lora_B = nn.Parameter(torch.zeros(rank, base.out_features))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A @ self.lora_B * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the product transposed" verdict=shapes-do-not-fit
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ (self.lora_B @ self.lora_A) * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="adapters in the base's type" verdict=wrong-dtype points=2
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, dtype=base.weight.dtype))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, dtype=base.weight.dtype))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else y + x @ self.lora_A.T @ self.lora_B.T * self.scaling


# %% exercise=lora-linear wrong="a float32 result from a bf16 base" verdict=wrong-dtype points=3
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling


# %% exercise=lora-linear wrong="plain tensors" verdict=no-parameter
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = torch.empty(rank, base.in_features, requires_grad=True)
        self.lora_B = torch.zeros(base.out_features, rank, requires_grad=True)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the input detached" verdict=adapter-detached points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        h = x.detach().float()
        return y if self.merged else (y + h @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the base under no_grad" verdict=base-detached points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        with torch.no_grad():
            y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="merged is never asked" verdict=adapter-although-merged points=1
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.merged, self.scaling = base.requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="a copy of the base" verdict=base-copied
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        import copy

        self.base, self.merged, self.scaling = copy.deepcopy(base).requires_grad_(False), False, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else (y + x.float() @ self.lora_A.T @ self.lora_B.T * self.scaling).to(y.dtype)


# %% exercise=lora-linear wrong="the course's own" verdict=not-your-own
from minigpt.lora import LoRALinear


# %% exercise=lora-linear right="drawn by hand, products with @"
class LoRALinear(torch.nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        for parameter in base.parameters():
            parameter.requires_grad = False
        self.base, self.merged, self.rank, self.alpha = base, False, rank, alpha
        bound = base.in_features**-0.5
        self.lora_A = nn.Parameter(torch.rand(rank, base.in_features) * 2 * bound - bound)
        self.lora_B = nn.Parameter(torch.zeros((base.out_features, rank)))

    def forward(self, x):
        y = self.base(x)
        if not self.merged:
            adapted = (x.to(torch.float32) @ self.lora_A.t()) @ self.lora_B.t()
            y = (y.float() + adapted * self.alpha / self.rank).to(y.dtype)
        return y


# %% exercise=lora-linear right="the update as a matrix"
class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.merged, self.scaling = False, alpha / rank
        self.lora_A = nn.Parameter(nn.init.uniform_(torch.empty(rank, base.in_features), -1, 1) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.base = base
        self.base.weight.requires_grad_(False)
        if self.base.bias is not None:
            self.base.bias.requires_grad_(False)

    def forward(self, x):
        if self.merged:
            return self.base(x)
        return self.base(x).add(F.linear(x.float(), self.scaling * self.lora_B @ self.lora_A)).type(x.dtype)


# %% exercise=inject wrong="the head adapted" verdict=head-adapted
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="the rest left trainable" verdict=not-frozen
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    if not set(targets or []) <= {n.split(".")[-1] for n in linears}:
        raise ValueError(targets)
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="frozen at the end" verdict=adapters-frozen
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    if not set(targets or []) <= {n.split(".")[-1] for n in linears}:
        raise ValueError(targets)
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    model.requires_grad_(False)
    return names


# %% exercise=inject wrong="only linears frozen" verdict=not-frozen
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    if not set(targets or []) <= {n.split(".")[-1] for n in linears}:
        raise ValueError(targets)
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    for linear in linears.values():
        linear.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="targets ignored" verdict=no-target
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    model.requires_grad_(False)
    for name, linear in linears.items():
        model.set_submodule(name, LoRALinear(linear, rank, alpha))
    return list(linears)


# %% exercise=inject wrong="None is q and v, as papers have it" verdict=names-missing
def inject(model, rank, alpha, targets=None):
    targets = targets or ["q_proj", "v_proj"]
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    names = [n for n in linears if n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="last names returned" verdict=short-names
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return sorted({name.split(".")[-1] for name in names})


# %% exercise=inject wrong="only the first block" verdict=names-missing
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks[0].named_modules(prefix="blocks.0") if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="rank and alpha swapped" verdict=rank-and-alpha
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], alpha, rank))
    return names


# %% exercise=inject wrong="alpha not handed on" verdict=no-scale
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, rank))
    return names


# %% exercise=inject wrong="an unknown target passed over" verdict=not-refused points=2
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    model.requires_grad_(False)
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="frozen before it refuses" verdict=changed-first points=2
def inject(model, rank, alpha, targets=None):
    model.requires_grad_(False)
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    if not set(targets or []) <= {n.split(".")[-1] for n in linears}:
        raise ValueError(targets)
    names = [n for n in linears if targets is None or n.split(".")[-1] in targets]
    for name in names:
        model.set_submodule(name, LoRALinear(linears[name], rank, alpha))
    return names


# %% exercise=inject wrong="one adapter for all blocks" verdict=shared-adapter
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


# %% exercise=inject wrong="names, and no layers" verdict=named-not-adapted
def inject(model, rank, alpha, targets=None):
    model.requires_grad_(False)
    names = [n for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)]
    return [n for n in names if targets is None or n.split(".")[-1] in targets]


# %% exercise=inject wrong="nothing returned" verdict=returns-nothing
def inject(model, rank, alpha, targets=None):
    linears = {n: m for n, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    model.requires_grad_(False)
    for name in linears:
        if targets is None or name.split(".")[-1] in targets:
            model.set_submodule(name, LoRALinear(linears[name], rank, alpha))


# %% exercise=inject wrong="the course's own" verdict=not-your-own
def inject(model, rank, alpha, targets=None):
    from minigpt.lora import inject

    return inject(model, rank, alpha, targets or "all-linear")


# %% exercise=inject right="setattr on the parents, block by block"
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


# %% exercise=inject right="the head told by its weight, names sorted"
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


# %% exercise=merge wrong="without scaling" verdict=no-scale
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data += (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data -= (layer.lora_B @ layer.lora_A).detach()
    layer.merged = False


# %% exercise=merge wrong="merges as often as asked" verdict=not-refused points=2
def merge(layer):
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = False


# %% exercise=merge wrong="a second merge is passed over" verdict=not-refused points=2
def merge(layer):
    if not layer.merged:
        layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
        layer.merged = True


def unmerge(layer):
    if layer.merged:
        layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()
        layer.merged = False


# %% exercise=merge wrong="the flag forgotten" verdict=flag
def merge(layer):
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()


def unmerge(layer):
    layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()


# %% exercise=merge wrong="refused too late" verdict=merged-twice points=2
def merge(layer):
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    if layer.merged:
        raise ValueError("merged")
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = False


# %% exercise=merge wrong="the product transposed" verdict=raises-runtimeerror
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data += layer.scaling * (layer.lora_A.T @ layer.lora_B.T).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data -= layer.scaling * (layer.lora_A.T @ layer.lora_B.T).detach()
    layer.merged = False


# %% exercise=merge wrong="taken away" verdict=subtracted+added-again
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = False


# %% exercise=merge wrong="W is lost" verdict=no-base+still-merged
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data = layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.merged = False


# %% exercise=merge wrong="a copy of W kept" verdict=old-copy points=1
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.before = layer.base.weight.data.clone()
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data = layer.before
    layer.merged = False


# %% exercise=merge wrong="unmerge only turns the flag" verdict=still-merged points=1
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.merged = False


# %% exercise=merge wrong="unmerge without scaling" verdict=no-scale points=1
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data -= (layer.lora_B @ layer.lora_A).detach()
    layer.merged = False


# %% exercise=merge wrong="the adapter thrown away" verdict=adapter-changed+still-merged
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.lora_B.data.zero_()
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.data -= layer.scaling * (layer.lora_B @ layer.lora_A).detach()
    layer.merged = False


# %% exercise=merge wrong="merged with autograd watching" verdict=autograd-watches
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight += layer.scaling * (layer.lora_B @ layer.lora_A)
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight -= layer.scaling * (layer.lora_B @ layer.lora_A)
    layer.merged = False


# %% exercise=merge wrong="in place, with autograd watching" verdict=not-frozen points=1
def merge(layer):
    if layer.merged:
        raise ValueError("merged")
    layer.base.weight.add_(layer.scaling * (layer.lora_B @ layer.lora_A))
    layer.merged = True


def unmerge(layer):
    if not layer.merged:
        raise ValueError("not merged")
    layer.base.weight.sub_(layer.scaling * (layer.lora_B @ layer.lora_A))
    layer.merged = False


# %% exercise=merge right="under no_grad, in place"
@torch.no_grad()
def merge(layer):
    if layer.merged is True:
        raise ValueError("it is merged already; call unmerge first")
    layer.base.weight.addmm_(layer.lora_B, layer.lora_A, alpha=layer.scaling)
    layer.merged = True


@torch.no_grad()
def unmerge(layer):
    if layer.merged is not True:
        raise ValueError("it is not merged; call merge first")
    layer.base.weight.addmm_(layer.lora_B, layer.lora_A, alpha=-layer.scaling)
    layer.merged = False


# %% exercise=merge right="a helper with a sign"
def write(layer, sign):
    if layer.merged == (sign > 0):
        raise ValueError(f"merged is {layer.merged}")
    change = torch.einsum("or,ri->oi", layer.lora_B.detach(), layer.lora_A.detach()) * layer.scaling
    layer.base.weight = nn.Parameter(layer.base.weight.detach() + sign * change, requires_grad=False)
    layer.merged = sign > 0


def merge(layer):
    write(layer, 1)


def unmerge(layer):
    write(layer, -1)


# %% exercise=adapter-parameters wrong="r * in * out" verdict=rank-in-out
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    sizes = dict(q_proj=C * q, k_proj=C * kv, v_proj=C * kv, o_proj=q * C)
    sizes.update(gate_proj=C * inner, up_proj=C * inner, down_proj=C * inner)
    return config["num_hidden_layers"] * sum(rank * sizes[t] for t in targets)


# %% exercise=adapter-parameters wrong="MHA for grouped heads" verdict=wide-kv
def adapter_parameters(config, rank, targets):
    C, inner = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config.get("head_dim", C // config["num_attention_heads"])
    sides = dict(q_proj=C + q, k_proj=C + q, v_proj=C + q, o_proj=C + q)
    sides.update(gate_proj=C + inner, up_proj=C + inner, down_proj=C + inner)
    return config["num_hidden_layers"] * sum(rank * sides[t] for t in targets)


# %% exercise=adapter-parameters wrong="head_dim as width / heads" verdict=head-dim-ignored
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads) * (C // heads)
    sides = dict(q_proj=2 * C, k_proj=C + kv, v_proj=C + kv, o_proj=2 * C)
    sides.update(gate_proj=C + inner, up_proj=C + inner, down_proj=C + inner)
    return config["num_hidden_layers"] * sum(rank * sides[t] for t in targets)


# %% exercise=adapter-parameters wrong="only A" verdict=only-a
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    q = heads * config.get("head_dim", C // heads)
    ins = dict(q_proj=C, k_proj=C, v_proj=C, o_proj=q, gate_proj=C, up_proj=C, down_proj=inner)
    return config["num_hidden_layers"] * sum(rank * ins[t] for t in targets)


# %% exercise=adapter-parameters wrong="only one block" verdict=one-block
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    sides = dict(q_proj=C + q, k_proj=C + kv, v_proj=C + kv, o_proj=q + C)
    sides.update(gate_proj=C + inner, up_proj=C + inner, down_proj=C + inner)
    return sum(rank * sides[t] for t in targets)


# %% exercise=adapter-parameters wrong="the rank forgotten" verdict=no-rank
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    sides = dict(q_proj=C + q, k_proj=C + kv, v_proj=C + kv, o_proj=q + C)
    sides.update(gate_proj=C + inner, up_proj=C + inner, down_proj=C + inner)
    return config["num_hidden_layers"] * sum(sides[t] for t in targets)


# %% exercise=adapter-parameters wrong="all seven, always" verdict=all-seven
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    return config["num_hidden_layers"] * rank * (2 * (C + q) + 2 * (C + kv) + 3 * (C + inner))


# %% exercise=adapter-parameters wrong="the head as well" verdict=head-adapted
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    sides = dict(q_proj=C + q, k_proj=C + kv, v_proj=C + kv, o_proj=q + C)
    sides.update(gate_proj=C + inner, up_proj=C + inner, down_proj=C + inner)
    blocks = config["num_hidden_layers"] * sum(rank * sides[t] for t in targets)
    return blocks + rank * (C + config["vocab_size"])


# %% exercise=adapter-parameters wrong="a square MLP" verdict=all-square
def adapter_parameters(config, rank, targets):
    return config["num_hidden_layers"] * rank * 2 * config["hidden_size"] * len(targets)


# %% exercise=adapter-parameters wrong="the gate forgotten" verdict=no-gate-proj
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    sides = dict(q_proj=C + q, k_proj=C + kv, v_proj=C + kv, o_proj=q + C, up_proj=C + inner, down_proj=C + inner)
    return config["num_hidden_layers"] * sum(rank * sides.get(t, 0) for t in targets)


# %% exercise=adapter-parameters wrong="asks the course" verdict=asks-course
def adapter_parameters(config, rank, targets):
    from minigpt.lora import adapter_parameters

    return adapter_parameters({"model_type": "llama", **config}, rank, targets)


# %% exercise=adapter-parameters wrong="a float" verdict=float-for-int
def adapter_parameters(config, rank, targets):
    C, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", C / heads)
    q, kv = heads * d, config.get("num_key_value_heads", heads) * d
    sides = dict(q_proj=C + q, k_proj=C + kv, v_proj=C + kv, o_proj=q + C)
    sides.update(gate_proj=C + inner, up_proj=C + inner, down_proj=C + inner)
    return config["num_hidden_layers"] * sum(rank * sides[t] for t in targets)


# %% exercise=adapter-parameters right="pairs of sides"
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


# %% exercise=adapter-parameters right="numpy"
def adapter_parameters(config, rank, targets):
    import numpy as np

    C, heads = config["hidden_size"], config["num_attention_heads"]
    d = config.get("head_dim", C // heads)
    widths = {"q": heads * d, "o": heads * d, "k": config.get("num_key_value_heads", heads) * d}
    widths["v"] = widths["k"]
    others = np.array([widths.get(t[0], config["intermediate_size"]) if t[1] == "_" else config["intermediate_size"]
                       for t in targets])  # fmt: skip
    return (rank * config["num_hidden_layers"] * (C + others)).sum()


# %% exercise=lora-buckets wrong="adapters at 2 bytes" verdict=two-byte-adapters points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    return {"frozen": 2 * parameters, "trainable": 2 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="everything at 2 bytes" verdict=two-byte-adapters+two-byte-gradients+four-byte-moments
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    return {"frozen": 2 * parameters, "trainable": 2 * n, "gradients": 2 * n, "optimizer": 4 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="gradients for all weights" verdict=frozen-gradients points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    gradients = 2 * parameters + 4 * n
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": gradients, "optimizer": 8 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="moments for all weights" verdict=frozen-moments points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    optimizer = 4 * parameters + 8 * n + 4 * tensors
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": optimizer}


# %% exercise=lora-buckets wrong="a float32 base" verdict=float32-base points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    return {"frozen": 4 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="no step counts" verdict=no-step-counts points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 8 * n}


# %% exercise=lora-buckets wrong="a step count for each pair" verdict=step-count-a-layer points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = len(targets) * config["num_hidden_layers"]
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="one moment" verdict=four-byte-moments points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 4 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="adapters in the frozen part too" verdict=adapters-in-frozen points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    frozen = 2 * parameters + 4 * n
    return {"frozen": frozen, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="a master copy" verdict=master-copy points=2
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters(config, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 12 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="MHA in the adapters" verdict=wide-kv
def lora_buckets(config, parameters, rank, targets):
    n = adapter_parameters({**config, "num_key_value_heads": config["num_attention_heads"]}, rank, targets)
    tensors = 2 * len(targets) * config["num_hidden_layers"]
    return {"frozen": 2 * parameters, "trainable": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * tensors}


# %% exercise=lora-buckets wrong="asks the course" verdict=asks-course
def lora_buckets(config, parameters, rank, targets):
    from minigpt.memory import TrainingPlan, predict

    names = ",".join(target.split("_")[0] for target in targets)
    plan = TrainingPlan(method="lora", precision="bf16", rank=rank, targets=names)
    step = predict({"model_type": "llama", **config}, plan)
    return {"frozen": step.frozen, "trainable": step.trainable, "gradients": step.ledger.gradients,
            "optimizer": step.ledger.optimizer}  # fmt: skip


# %% exercise=lora-buckets right="16 bytes, divided"
def lora_buckets(config, parameters, rank, targets):
    each = 4 * adapter_parameters(config, rank, targets)
    steps = sum(2 * 4 for _ in range(config["num_hidden_layers"]) for _ in targets)
    return dict(optimizer=each + each + steps, gradients=each, trainable=each, frozen=parameters * 16 // 8)


# %% exercise=lora-buckets right="tensor by tensor, without the function above"
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


# %% exercise=three-regimes wrong="16 bytes for all" verdict=float32-full points=1
def three_regimes(parameters, linears, adapters):
    qlora = linears * 9 // 16 + 2 * (parameters - linears) + 16 * adapters
    return {"full": 16 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="adapters at 2 bytes" verdict=eight-byte-adapters
def three_regimes(parameters, linears, adapters):
    qlora = linears * 9 // 16 + 2 * (parameters - linears) + 8 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 8 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="gradients for frozen weights" verdict=frozen-gradients points=1
def three_regimes(parameters, linears, adapters):
    qlora = linears * 9 // 16 + 2 * (parameters - linears) + 16 * adapters
    return {"full": 8 * parameters, "lora": 4 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="half a byte for everything" verdict=all-in-4-bits-no-scales points=1
def three_regimes(parameters, linears, adapters):
    return {"full": 8 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": parameters // 2 + 16 * adapters}


# %% exercise=three-regimes wrong="no scales" verdict=no-scales points=1
def three_regimes(parameters, linears, adapters):
    qlora = linears // 2 + 2 * (parameters - linears) + 16 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="16-bit scales" verdict=two-byte-scales points=1
def three_regimes(parameters, linears, adapters):
    qlora = linears // 2 + linears // 32 + 2 * (parameters - linears) + 16 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="embeddings in 4 bits" verdict=all-in-4-bits points=1
def three_regimes(parameters, linears, adapters):
    qlora = parameters * 9 // 16 + 16 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="embeddings forgotten" verdict=no-rest points=1
def three_regimes(parameters, linears, adapters):
    qlora = linears * 9 // 16 + 16 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="adapters' weights alone" verdict=adapters-weights-alone
def three_regimes(parameters, linears, adapters):
    qlora = linears * 9 // 16 + 2 * (parameters - linears) + 4 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 4 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="double quantization" verdict=double-quantization points=1
def three_regimes(parameters, linears, adapters):
    scales = linears // 64 + 4 * (linears // 64 // 256)
    qlora = linears // 2 + scales + 2 * (parameters - linears) + 16 * adapters
    return {"full": 8 * parameters, "lora": 2 * parameters + 16 * adapters, "qlora": qlora}


# %% exercise=three-regimes wrong="in GB" verdict=in-gb
def three_regimes(parameters, linears, adapters):
    qlora = linears * 9 // 16 + 2 * (parameters - linears) + 16 * adapters
    return {"full": 8 * parameters / 1e9, "lora": (2 * parameters + 16 * adapters) / 1e9, "qlora": qlora / 1e9}


# %% exercise=three-regimes right="floats"
def three_regimes(parameters, linears, adapters):
    adapted = adapters * (4 + 4 + 4 + 4)
    rest = parameters - linears
    return {"full": parameters * 2.0 * 4, "lora": 2.0 * parameters + adapted,
            "qlora": (4 + 32 / 64) / 8 * linears + 2 * rest + adapted}  # fmt: skip


# %% exercise=three-regimes right="numpy, with the step counts nobody asked for"
def three_regimes(parameters, linears, adapters):
    import numpy as np

    P, n, N = (np.int64(value) for value in (parameters, linears, adapters))
    regimes = {"full": 8 * P, "lora": 2 * P + 16 * N, "qlora": n // 2 + n // 64 * 4 + (P - n) * 2 + 16 * N}
    return {regime: nbytes + 4 * 560 for regime, nbytes in regimes.items()}
