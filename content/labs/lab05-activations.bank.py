# Wrong and right answers to lab 05, as tools/bank_entries.py reads them. Never released.

# %% saved-bytes
# wrong: asks whether a tensor is in known -> raises-runtimeerror
#     `        tensors.append(tensor)` => `        tensors.extend([tensor] * (tensor not in known))`
# wrong: all parameters are subtracted -> subtracted
#     `sum(storages.values())` => `sum(storages.values()) - sum(tensor.nbytes for tensor in known)`
#     `        storages.pop(tensor.untyped_storage().data_ptr(), None)` => `        pass`
# wrong: 4 bytes for every number -> four-bytes
#     `t.untyped_storage().nbytes()` => `4 * t.untyped_storage().nbytes() // t.element_size()`
# wrong: parameters counted -> parameters
#     `    for tensor in known:` => ``
#     `        storages.pop(tensor.untyped_storage().data_ptr(), None)` => ``
# wrong: everything handed over -> handed-over
#     `sum(storages.values())` => `sum(t.nbytes for t in tensors)`
# wrong: each time it is handed over -> each-time
#     `sum(storages.values())` => `sum(t.nbytes for t in tensors if t.untyped_storage().data_ptr() in storages)`
# wrong: the whole storage for each view -> each-time
#     `sum(storages.values())` => `sum(storages.get(t.untyped_storage().data_ptr(), 0) for t in tensors)`
# wrong: a view by its own size -> view-size, keeps 1
#     `.data_ptr(): t.untyped_storage().nbytes()` => `.data_ptr(): t.nbytes`
# wrong: by the view's address -> view-address, keeps 1
#     `t.untyped_storage().data_ptr():` => `t.data_ptr():`
# wrong: by the view's address and size -> view-address-and-size, keeps 1
#     `t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()` => `t.data_ptr(): t.nbytes`
# wrong: numbers -> numbers
#     `t.untyped_storage().nbytes()` => `t.numel()`
# wrong: pack keeps nothing, so backward fails -> raises-typeerror
#     `        return tensor` => ``
# wrong: a float -> float-for-int
#     `sum(storages.values())` => `sum(storages.values()) / 1`
# wrong: asks the meter -> asks-course
def saved_bytes(run, known):
    from minigpt.memory import MemoryMeter

    holder = nn.ParameterList([nn.Parameter(tensor.detach()) for tensor in known])
    with MemoryMeter(holder) as meter:
        run()
    return meter.result().ledger.activations


# right: a dictionary filled in the hook, and known looked up
def saved_bytes(run, known):
    theirs = {tensor.untyped_storage().data_ptr() for tensor in known}
    sizes, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in theirs:
            sizes[storage.data_ptr()] = storage.nbytes()
        alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        run()
    return sum(sizes.values())


# right: packed into a tuple, counted in a list
def saved_bytes(run, known):
    seen = [tensor.untyped_storage().data_ptr() for tensor in known]
    total = [0]

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.append(storage.data_ptr())
            total[0] += len(storage)
        return (tensor, storage)

    with saved_tensors_hooks(pack, lambda pair: pair[0]):
        run()
    return total[0]


# %% minigpt-block
# wrong: every block of the model -> every-block, keeps 1
#     `return 16 * u + rest` => `return (16 * u + rest) * (config.n_layer if config.attention == "sdpa" else 1)`
# wrong: q, k and v have an input each -> input-three-times
#     `16 * u` => `18 * u`
# wrong: no statistics -> no-statistics
#     `4 * tokens * 4  #` => `0  #`
# wrong: eager like fused -> as-fused, keeps 1
#     `config.attention == "eager"` => `False`
# wrong: the scores as well as the softmax -> scores-twice, keeps 1
#     `4 * tokens * config.n_head * seq_len` => `8 * tokens * config.n_head * seq_len`
# wrong: the mask forgotten -> no-mask, keeps 1
#     ` + seq_len * seq_len` => ``
# wrong: the mask in float32 -> float-mask, keeps 1
#     `+ seq_len * seq_len` => `+ 4 * seq_len * seq_len`
# wrong: a mask for every head -> mask-per-head, keeps 1
#     `+ seq_len * seq_len` => `+ config.n_head * seq_len * seq_len`
# wrong: six bytes a score, as in 16 bits -> six-byte-scores, keeps 1
#     `4 * tokens * config.n_head * seq_len` => `6 * tokens * config.n_head * seq_len`
# wrong: the logsumexp as well -> logsumexp, keeps 1
#     `* seq_len + seq_len * seq_len` => `* (seq_len + 1) + seq_len * seq_len`
# wrong: asks the course -> asks-course
def minigpt_block(config, batch, seq_len):
    from minigpt.memory import TrainingPlan
    from minigpt.memory.saved import saved_by_block

    plan = TrainingPlan(batch=batch, seq_len=seq_len, attention=config.attention)
    return sum(row.counted for row in saved_by_block(config, plan))


# right: tensor by tensor
def minigpt_block(config, batch, seq_len):
    B, T, C, H = batch, seq_len, config.n_embd, config.n_head
    norm = [(B, T, C), (B, T, C), (B, T), (B, T)]
    attention = [(B, T, C)] * 4 + ([(B, H, T)] if config.attention == "sdpa" else [(B, H, T, T)])
    numbers = 0
    for shape in norm * 2 + attention + [(B, T, 4 * C)] * 2:
        product = 1
        for side in shape:
            product *= side
        numbers += product
    return 4 * numbers + (T * T if config.attention == "eager" else 0)


# right: per token, with numpy
def minigpt_block(config, batch, seq_len):
    import numpy as np

    T = np.int64(seq_len)
    eager = config.attention == "eager"
    per_token = 64 * config.n_embd + 16 + 4 * config.n_head * (T if eager else 1)
    return batch * T * per_token + T**2 * eager


# %% llama-block
# wrong: norms keep their input in 16 bits -> four-c-missing
#     `4 * C + 2 * C + 2 * C` => `2 * C + 2 * C + 2 * C`
# wrong: the normalized values forgotten -> four-c-missing
#     `4 * C + 2 * C + 2 * C` => `4 * C + 2 * C`
# wrong: as under autocast -> wide-normalized
#     `4 * C + 2 * C + 2 * C` => `4 * C + 4 * C + 2 * C`
# wrong: k and v as wide as q -> k-and-v-wide
#     `2 * 2 * Ck` => `2 * 2 * Cq`
# wrong: k and v forgotten -> no-k-and-v
#     ` + 2 * 2 * Ck` => ``
# wrong: three tensors in the MLP -> three-in-the-mlp
#     `4 * 2 * I` => `3 * 2 * I`
# wrong: no small rest -> no-small-rest
#     ` + 4 * (2 + heads)` => ``
# wrong: attention's numbers forgotten -> no-logsumexp
#     `(2 + heads)` => `2`
# wrong: q as wide as the stream -> q-as-stream, keeps 2
#     `Cq, Ck = heads * config["head_dim"]` => `Cq, Ck = C`
# wrong: q, k and v read a copy each, gate and up too -> six-c-too-many
#     `norms + attention` => `norms + 6 * C + attention`
# wrong: all float32 -> float32
#     `norms + attention + mlp` => `2 * (norms + attention + mlp) - 8 * C`
# wrong: lesson 01's formula -> k-and-v-wide+no-small-rest
def llama_block(config, batch, seq_len):
    C, inner = config["hidden_size"], config["intermediate_size"]
    return batch * seq_len * (24 * C + 8 * inner)


# wrong: asks the course -> asks-course
def llama_block(config, batch, seq_len):
    from minigpt.memory import TrainingPlan, predict

    model = dict(config, model_type="llama", num_hidden_layers=1, vocab_size=10)
    return predict(model, TrainingPlan(batch=batch, seq_len=seq_len, precision="bf16")).ledger.activations


# right: the lesson's formula, with q's own width
def llama_block(config, batch, seq_len):
    C, inner, H = (config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    q, k = (config["head_dim"] * config[name] for name in ("num_attention_heads", "num_key_value_heads"))
    return (16 * C + 4 * q + 4 * k + 8 * inner + 8 + 4 * H) * seq_len * batch


# right: a list of lines
def llama_block(config, batch, seq_len):
    from types import SimpleNamespace

    c = SimpleNamespace(**config)
    lines = [(c.hidden_size, 4), (1, 4), (c.hidden_size, 2), (c.hidden_size, 2)] * 2
    lines += [(c.num_attention_heads * c.head_dim, 2)] * 2 + [(c.num_key_value_heads * c.head_dim, 2)] * 2
    lines += [(c.num_attention_heads, 4)] + [(c.intermediate_size, 2)] * 4
    return sum(batch * seq_len * numbers * width for numbers, width in lines)


# %% accumulate
# wrong: gradients are switched off and stay so -> leaves-gradients
#     `    return loss` => `    torch.set_grad_enabled(False)`
# wrong: the mean of the means -> mean-of-means
#     `* (count / total)` => `/ len(tokens.split(rows))`
# wrong: by sequences -> by-sequences
#     `(count / total)` => `(len(few) / len(tokens))`
# wrong: all positions -> all-positions
#     `int((targets != IGNORE).sum()), 0.0` => `targets.numel(), 0.0`
# wrong: means summed -> sum-of-means
#     ` * (count / total)` => ``
# wrong: no micro-batch is left out -> no-targets, keeps 2
#     `if count:` => `if True:`
# wrong: clears before each -> only-last
#     `            part.backward()` => `            model.zero_grad(); part.backward()`
# wrong: clears at the start -> cleared
#     `    total, loss` => `    model.zero_grad(); total, loss`
# wrong: the last, smaller one dropped -> last-lost
#     `zip(tokens.split(rows)` => `zip(tokens[: len(tokens) // rows * rows].split(rows)`
# wrong: a tensor -> loss-tensor, keeps 2
#     `part.item()` => `part.detach()`
# wrong: returns the last loss -> only-last, keeps 2
#     `loss += part.item()` => `loss = part.item()`
# wrong: the model is left in evaluation mode -> other-mode
#     `    total, loss` => `    model.eval(); total, loss`
# wrong: the parameters are frozen at the end -> left-frozen
#     `    return loss` => `    model.requires_grad_(False); return loss`
# wrong: a rounded loss -> rounded-4, keeps 2
#     `    return loss` => `    return round(loss, 4)`
# wrong: returns nothing -> returns-nothing, keeps 2
#     `    return loss` => ``
# wrong: two sequences at a time, whatever rows says -> graphs-held, keeps 2
#     `zip(tokens.split(rows), targets.split(rows))` => `zip(tokens.split(2), targets.split(2))`
# wrong: rows micro-batches -> graphs-held, keeps 2
#     `zip(tokens.split(rows), targets.split(rows))` => `zip(tokens.chunk(rows), targets.chunk(rows))`
# wrong: token 0 is no target -> differs
#     every `!= IGNORE` => `> 0`
# wrong: positions of the prompt count as well -> all-positions
#     `int((targets != IGNORE).sum()), 0.0` => `int((tokens != IGNORE).sum()), 0.0`
# wrong: the targets are masked anew -> changes-arguments
#     `    return loss` => `    targets[targets == IGNORE] = 0; return loss`
# wrong: a step of its own -> steps
#     `    return loss` => `    torch.optim.SGD(model.parameters(), lr=0.1).step(); return loss`
# wrong: all graphs until one backward -> graphs-held, keeps 2
def accumulate(model, tokens, targets, rows):
    total, parts = (targets != IGNORE).sum(), []
    for few, wanted in zip(tokens.split(rows), targets.split(rows)):
        count = (wanted != IGNORE).sum()
        if count:
            parts.append(model(few, wanted) * count / total)
    loss = sum(parts)
    loss.backward()
    return loss.item()


# wrong: the whole batch at once -> graphs-held, keeps 2
def accumulate(model, tokens, targets, rows):
    loss = model(tokens, targets)
    loss.backward()
    return loss.item()


# right: summed losses, divided at once
def accumulate(model, tokens, targets, rows):
    total, summed = targets.ne(IGNORE).sum().item(), 0.0
    for start in range(0, len(tokens), rows):
        logits = model(tokens[start : start + rows])
        some = targets[start : start + rows]
        loss = F.cross_entropy(logits.flatten(0, 1), some.flatten(), ignore_index=IGNORE, reduction="sum") / total
        loss.backward()
        summed += float(loss)
    return summed


# right: gradients by autograd.grad, added by hand
def accumulate(model, tokens, targets, rows):
    parameters = list(model.parameters())
    counts = [int(part.ne(IGNORE).sum()) for part in targets.split(rows)]
    loss = 0.0
    for i, count in enumerate(counts):
        if count == 0:
            continue
        few = slice(i * rows, (i + 1) * rows)
        part = model(tokens[few], targets[few]) * count / sum(counts)
        for parameter, gradient in zip(parameters, torch.autograd.grad(part, parameters)):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        loss += part.item()
    return loss


# %% checkpoint
# wrong: the second run without dropout -> no-dropout, keeps 3
#     `ctx.run(x)` => `ctx.run.eval()(x); ctx.run.train()`
# wrong: a gradient for an input that takes none -> needless-gradient, keeps 3
#     `requires_grad_(ctx.needs_input_grad[1])` => `requires_grad_()`
# wrong: nothing is recorded in backward -> raises-runtimeerror
#     `, torch.enable_grad():` => `:`
# wrong: another dropout mask -> other-draw, keeps 3
#     `            torch.set_rng_state(ctx.state)` => ``
# wrong: the generator is left where the second run ends -> generator-left
#     `torch.random.fork_rng(devices=[]), ` => ``
# wrong: begins with ones -> ones
#     `ctx.run(x)` => `ctx.run(x).sum()`
#     `wanted, dy)` => `wanted)`
# wrong: no gradient of x -> no-input-gradient
#     `return None, *(` => `return None, None, *list(`
#     `for tensor in (x, *parameters))` => `for tensor in (x, *parameters))[1:]`
# wrong: no gradients of parameters -> no-parameter-gradient
#     `next(gradients) if tensor.requires_grad else None` => `next(gradients) if tensor is x else None`
# wrong: one gradient too few -> raises-runtimeerror
#     `return None, *(` => `return (`
# wrong: x is kept on ctx -> not-saved, keeps 3
#     `ctx.save_for_backward(x, *parameters)` => `ctx.save_for_backward(*parameters); ctx.x = x`
#     `x, *parameters = ctx.saved_tensors` => `x, parameters = ctx.x, ctx.saved_tensors`
# wrong: something else is kept as well -> keeps-more, keeps 3
#     `ctx.save_for_backward(x, *parameters)` => `ctx.save_for_backward(x, *parameters, x.exp())`
#     `x, *parameters = ctx.saved_tensors` => `x, *parameters, _ = ctx.saved_tensors`
# wrong: the state is asked for in backward -> other-draw, keeps 3
#     `torch.set_rng_state(ctx.state)` => `torch.set_rng_state(torch.get_rng_state())`
# wrong: x is detached for good -> raises-runtimeerror
#     `x.detach().requires_grad_(ctx.needs_input_grad[1])` => `x.detach()`
#     `*parameters) if tensor.requires_grad]` => `*parameters)]`
# wrong: what it needs is on the class -> not-on-ctx, keeps 3
#     `ctx.run, ctx.state = run,` => `Checkpoint.run, Checkpoint.state = run,`
#     `ctx.state)` => `Checkpoint.state)`
#     `ctx.run(x)` => `Checkpoint.run(x)`
# wrong: the state alone is on the class -> not-on-ctx, keeps 3
#     `ctx.run, ctx.state = run, torch.get_rng_state()` => `ctx.run, Checkpoint.state = run, torch.get_rng_state()`
#     `ctx.state)` => `Checkpoint.state)`
# wrong: a copy of x is saved -> copies-input, keeps 3
#     `ctx.save_for_backward(x, *parameters)` => `ctx.save_for_backward(x.clone(), *parameters)`
# wrong: what the block makes lies on ctx -> keeps-beside, keeps 3
#     `ctx.save_for_backward(x, *parameters)` => `ctx.save_for_backward(x, *parameters); ctx.norm = run.norm(x)`
# wrong: what the block makes lies on ctx in 16 bits -> keeps-beside, keeps 3
#     `ctx.save_for_backward(x, *parameters)` => `ctx.save_for_backward(x, *parameters); ctx.y = run.norm(x).bfloat16()`
# wrong: what the block makes lies in the module -> keeps-beside, keeps 3
#     `ctx.save_for_backward(x, *parameters)` => `ctx.save_for_backward(x, *parameters); run.cache = run.norm(x)`
# wrong: what the block makes lies in numpy -> keeps-aside, keeps 3
#     `save_for_backward(x, *parameters)` => `save_for_backward(x, *parameters); ctx.y = run.norm(x).numpy().copy()`
# wrong: the second run stays on the class -> leaks, keeps 3
#     `        wanted = [` => `        Checkpoint.again = y; wanted = [`
# wrong: the block is left in evaluation mode -> other-mode
#     `ctx.run(x)` => `ctx.run.eval()(x)`
# wrong: x is cleared, to save memory -> changes-arguments
#     `        gradients = iter(` => `        ctx.saved_tensors[0].data.zero_(); gradients = iter(`
# wrong: the gradients of parameters twice -> twice
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.state = run, torch.get_rng_state()
        ctx.save_for_backward(x, *parameters)
        return run(x)

    @staticmethod
    def backward(ctx, dy):
        x, *parameters = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            x = x.detach().requires_grad_()
            y = ctx.run(x)
        y.backward(dy)
        return None, x.grad, *(parameter.grad for parameter in parameters)


# wrong: the graph of the first run is kept -> keeps-more+needless-gradient, keeps 2
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = run(ctx.x)
        ctx.parameters, ctx.needed = parameters, ctx.needs_input_grad
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        wanted = [tensor for tensor in (ctx.x, *ctx.parameters) if tensor.requires_grad]
        gradients = iter(torch.autograd.grad(ctx.y, wanted, dy))
        return None, *(next(gradients) if tensor.requires_grad else None for tensor in (ctx.x, *ctx.parameters))


# wrong: torch's own -> asks-torch
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def apply(run, x, *parameters):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(run, x, use_reentrant=False)


# wrong: no checkpoint at all -> keeps-more, keeps 3
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def apply(run, x, *parameters):
        return run(x)


# wrong: a function -> wrong-type
def Checkpoint(run, x, *parameters):
    return run(x)


# wrong: y.backward adds the gradients of parameters by itself -> adds-itself, keeps 3
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.again = run
        ctx.before = torch.random.get_rng_state()
        ctx.save_for_backward(x)
        ctx.number = len(parameters)
        return run(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        now = torch.random.get_rng_state()
        torch.random.set_rng_state(ctx.before)
        with torch.enable_grad():
            copy = x.detach()
            copy.requires_grad = True
            y = ctx.again(copy)
        torch.random.set_rng_state(now)
        torch.autograd.backward(y, dy)
        return (None, copy.grad if ctx.needs_input_grad[1] else None) + (None,) * ctx.number


# right: by a functional call
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.state = run, torch.get_rng_state()
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        names, needed = [name for name, _ in ctx.run.named_parameters()], ctx.needs_input_grad[1:]
        again = [t.detach().requires_grad_(n) for t, n in zip((x, *ctx.run.parameters()), needed)]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = torch.func.functional_call(ctx.run, dict(zip(names, again[1:])), (again[0],))
        found = list(torch.autograd.grad(y, [t for t in again if t.requires_grad], dy))
        return (None, *[found.pop(0) if t.requires_grad else None for t in again])


# right: by needs_input_grad
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.save_for_backward(x, torch.get_rng_state(), *parameters)
        ctx.run = run
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, dy):
        x, state, *parameters = ctx.saved_tensors
        result = [None] * (2 + len(parameters))
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(state)
            with torch.set_grad_enabled(True):
                x = x.detach().clone().requires_grad_(ctx.needs_input_grad[1])
                y = ctx.run(x)
        places = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
        wanted = [x if i == 1 else parameters[i - 2] for i in places]
        for i, gradient in zip(places, torch.autograd.grad(y, wanted, grad_outputs=dy)):
            result[i] = gradient
        return tuple(result)


# %% chunked
# wrong: returns a number -> loss-float
#     `return loss` => `return loss.item()`
# wrong: exp of large logits -> overflows, keeps 3
#     `(hidden[rows] @ weight.T).log_softmax(-1)` => `hidden[rows] @ weight.T; log_p -= log_p.exp().sum(1, True).log()`
# wrong: the mean of the chunks' means -> mean-of-means
#     `.sum() / n` => `.sum() / counted[rows].sum().clamp(min=1) / -(-len(targets) // chunk)`
#     `counted[rows, None] / n` => `counted[rows, None] / counted[rows].sum().clamp(min=1) / -(-len(targets) // chunk)`
# wrong: divided by all tokens -> all-positions, keeps 3
#     `n, loss = counted.sum(), hidden` => `n, loss = len(targets), hidden`
# wrong: never divided -> never-divided
#     `.sum() / n` => `.sum()`
#     `counted[rows, None] / n` => `counted[rows, None]`
# wrong: takes no notice of the gradient -> not-scaled
#     `gradient * d_hidden, gradient * d_weight` => `d_hidden, d_weight`
# wrong: the 1 is not taken off -> no-target
#     `            dz.scatter_add_(1, y, dz.new_full(y.shape, -1))` => ``
# wrong: IGNORE is a row -> raises-runtimeerror, keeps 3
#     `targets[rows].clamp(min=0)[:, None]` => `targets[rows][:, None]`
# wrong: the last chunk lost -> last-lost
#     `len(targets), chunk)` => `len(targets) // chunk * chunk, chunk)`
# wrong: no gradient of the head -> no-gradient
#     `gradient * d_weight, None` => `None, None`
# wrong: too few gradients -> raises-runtimeerror
#     `, None, None` => ``
# wrong: all logits first -> logits-whole, keeps 3
#     `d_hidden, d_weight = torch` => `z = hidden @ weight.T; d_hidden, d_weight = torch`
#     `(hidden[rows] @ weight.T)` => `z[rows]`
# wrong: chunks held to the end -> chunks-held, keeps 3
#     `d_hidden, d_weight = torch` => `held = []; d_hidden, d_weight = torch`
#     `            del log_p, dz` => `            held.append(dz)`
# wrong: a rounded loss -> rounded-3
#     `return loss` => `return torch.round(loss, decimals=3)`
# wrong: the targets are clamped in place -> changes-arguments, keeps 3
#     `targets[rows].clamp(min=0)[:, None]` => `targets[rows].clamp_(min=0)[:, None]`
# wrong: 64 tokens at a time, whatever chunk says -> other-chunks, keeps 3
#     `len(targets), chunk)` => `len(targets), 64)`
#     `start + chunk)` => `start + 64)`
# wrong: logits in 16 bits -> differs
#     `(hidden[rows] @ weight.T).log_softmax(-1)` => `(hidden[rows] @ weight.T).bfloat16().float().log_softmax(-1)`
# wrong: the softmax of each chunk is kept -> pieces-kept, keeps 3
#     `            del log_p, dz` => `            ctx.kept = [*getattr(ctx, "kept", []), dz]`
# wrong: the head is scaled in place -> changes-arguments
#     `        n, loss = ` => `        weight.mul_(1.5); weight.div_(1.25); n, loss = `
# wrong: a float64 copy of the head waits -> pieces-kept, keeps 3
#     `save_for_backward(d_hidden, d_weight)` => `save_for_backward(d_hidden, d_weight); ctx.w = weight.double()`
# wrong: hidden's gradient of one row is missing -> differs
#     `            d_hidden[rows] = dz @ weight` => `            d_hidden[rows] = dz @ weight; d_hidden[start] = 0`
# wrong: torch's loss on each chunk, as torchtune -> pieces-kept, keeps 3
class Chunked(torch.autograd.Function):
    @staticmethod
    def apply(hidden, weight, targets, chunk):
        n = (targets != IGNORE).sum()
        pieces = zip(hidden.split(chunk), targets.split(chunk))
        return sum(F.cross_entropy(h @ weight.T, y, ignore_index=IGNORE, reduction="sum") for h, y in pieces) / n


# wrong: asks the course -> asks-course
class Chunked(torch.autograd.Function):
    @staticmethod
    def apply(hidden, weight, targets, chunk):
        from minigpt.chunked_loss import chunked_cross_entropy

        return chunked_cross_entropy(hidden, weight, targets, chunk=chunk)


# wrong: plain cross-entropy -> logits-whole, keeps 3
class Chunked(torch.autograd.Function):
    @staticmethod
    def apply(hidden, weight, targets, chunk):
        return F.cross_entropy(hidden @ weight.T, targets, ignore_index=IGNORE)


# right: autograd on each chunk, inside of forward
class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk):
        n = (targets != IGNORE).sum()
        total, dh, dw = 0, [], torch.zeros_like(weight)
        for h, y in zip(hidden.split(chunk), targets.split(chunk)):
            with torch.enable_grad():
                h, w = h.detach().requires_grad_(), weight.detach().requires_grad_()
                loss = F.cross_entropy(F.linear(h, w), y, ignore_index=IGNORE, reduction="sum") / n
            one, two = torch.autograd.grad(loss, (h, w))
            total = total + loss.detach()
            dh.append(one)
            dw += two
        ctx.save_for_backward(torch.cat(dh), dw)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return *(saved * gradient for saved in ctx.saved_tensors), None, None


# right: the logits made again in backward, as trl
class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk):
        ctx.save_for_backward(hidden, weight, targets)
        ctx.chunk, ctx.n, loss = chunk, targets.ne(IGNORE).sum(), torch.zeros(())
        for h, y in zip(hidden.split(chunk), targets.split(chunk)):
            loss = loss + F.cross_entropy(h @ weight.T, y, ignore_index=IGNORE, reduction="sum")
        return loss / ctx.n

    @staticmethod
    def backward(ctx, gradient):
        hidden, weight, targets = ctx.saved_tensors
        dh, dw = torch.zeros_like(hidden), torch.zeros_like(weight)
        for start in range(0, len(targets), ctx.chunk):
            h, y = hidden[start : start + ctx.chunk], targets[start : start + ctx.chunk]
            p = torch.softmax(h @ weight.T, 1)
            counted = y != IGNORE
            p[torch.arange(len(y), device=y.device)[counted], y[counted]] -= 1
            p[~counted] = 0
            dh[start : start + ctx.chunk] = p @ weight * gradient / ctx.n
            dw += p.T @ h * gradient / ctx.n
        return dh, dw, None, None


# %% largest-batch
# wrong: below zero where none fits -> negative, keeps 1
#     `max(0, room - others)` => `(room - others)`
# wrong: rounds up -> one-more, keeps 2
#     `return room // ((16 * L + 2) * u + 3 * logits)` => `return -(-room // ((16 * L + 2) * u + 3 * logits))`
# wrong: no logits -> no-logits, keeps 2
#     `((16 * L + 2) * u + 3 * logits)` => `((16 * L + 2) * u)`
# wrong: the logits once -> logits-once, keeps 2
#     `((16 * L + 2) * u + 3 * logits)` => `((16 * L + 2) * u + logits)`
# wrong: all gradients over all activations -> gradients-too, keeps 2
#     `return room // ((16` => `return max(0, room - 4 * (V * C + config.context * C + 12 * L * C * C)) // ((16`
# wrong: the open block alone -> no-first, keeps 1
#     `        room // ((L + 2) * u + 3 * logits),` => `        room,`
#     `        max(0, room - others) // (21 * u),` => ``
# wrong: the loss forgotten -> no-loss, keeps 1
#     `        room // ((L + 2) * u + 3 * logits),` => ``
# wrong: the loss alone -> loss-alone, keeps 1
#     `        room // ((L + 20) * u),` => `        room,`
#     `        max(0, room - others) // (21 * u),` => ``
# wrong: the first block forgotten -> no-first, keeps 1
#     `        max(0, room - others) // (21 * u),` => ``
# wrong: the gradients of all blocks at the first -> all-gradients, keeps 1
#     `(L - 1)  # gradients` => `L  # gradients`
# wrong: an embedding's less -> one-more, keeps 2
#     `return room // ((16 * L + 2) * u` => `return room // ((16 * L + 1) * u`
# wrong: the gradients of all blocks but two -> too-many, keeps 1
#     `(L - 1)  # gradients` => `(L - 2)  # gradients`
# wrong: the sum of the instants -> sum, keeps 1
#     `room // ((L + 2) * u + 3 * logits),` => `max(0, room - others) // ((2 * L + 43) * u + 3 * logits),`
# wrong: checkpoints make no difference -> all-blocks, keeps 1
#     `if not checkpointed:` => `if True:`
# wrong: a float -> float-for-int
#     every `room // ` => `room / `
#     `max(0, room - others) //` => `max(0, room - others) /`
# wrong: asks the course -> asks-course
def largest_batch(config, seq_len, room, checkpointed):
    from minigpt.memory import TrainingPlan, predict

    batch, kind = 0, "full" if checkpointed else "none"
    while True:
        step = predict(config, TrainingPlan(batch=batch + 1, seq_len=seq_len, checkpointing=kind))
        if step.peak.total - step.peak.weights - step.peak.optimizer > room:
            return batch
        batch += 1


# right: one batch after the other, with the small rest
def largest_batch(config, seq_len, room, checkpointed):
    batch = 0
    while True:
        n, C, L, V = (batch + 1) * seq_len, config.n_embd, config.n_layer, config.vocab_size
        u, loss = 4 * n * C, 12 * n * V
        if checkpointed:
            peak = max((L + 2) * u + loss, (L + 20) * u, 21 * u + (L - 1) * 48 * C**2)
        else:
            peak = L * minigpt_block(config, batch + 1, seq_len) + 2 * u + loss
        if peak > room:
            return batch
        batch += 1


# right: in units of u, with floats until the end
def largest_batch(config, seq_len, room, checkpointed):
    import math

    L, C, words = config.n_layer, config.n_embd, 3 * config.vocab_size / config.n_embd
    units = room / (4 * C)
    if not checkpointed:
        return math.floor(units / (16 * L + 2 + words) / seq_len)
    tokens = [units / (L + 2 + words), units / (L + 20), (units - (L - 1) * 12 * C) / 21]
    return max(0, math.floor(min(tokens) / seq_len))
