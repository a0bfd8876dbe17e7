# Wrong and right answers to lab 12, as tools/bank_entries.py reads them. Never released.

# %% shards
# wrong: rounded down -> rounded-down+remainder-lost+raises-runtimeerror
#     `return -(-n // ranks)` => `return n // ranks`
# wrong: one more where it divides -> one-too-many+other-part+always-padded
#     `return -(-n // ranks)` => `return n // ranks + 1`
# wrong: 2 ranks -> two-ranks+other-part+other-length
#     `return -(-n // ranks)` => `return -(-n // 2)`
# wrong: a float -> float-for-int+raises-typeerror
#     `return -(-n // ranks)` => `return -(-n // ranks) * 1.0`
# wrong: all shards -> all-shards+other-part+other-length
#     `return -(-n // ranks)` => `return -(-n // ranks) * ranks`
# wrong: the part reaches into the padding -> padding-counted, keeps 3
#     `min((rank + 1) * length, n)` => `(rank + 1) * length`
#     `min(rank * length, n)` => `rank * length`
# wrong: begins after the end -> start-beyond, keeps 3
#     `min(rank * length, n)` => `rank * length`
# wrong: as tensor_split -> spread, keeps 3
#     `length = shard_length(n, ranks)` => `low, more = divmod(n, ranks)`
#     `min(rank * length, n)` => `rank * low + min(rank, more)`
#     `min((rank + 1) * length, n)` => `(rank + 1) * low + min(rank + 1, more)`
# wrong: the rest to the last rank -> rest-to-last, keeps 3
#     `length = shard_length(n, ranks)` => `length = n // ranks`
#     `min((rank + 1) * length, n)` => `n if rank == ranks - 1 else (rank + 1) * length`
# wrong: ranks from 1 -> from-one, keeps 3
#     `length = shard_length(n, ranks)` => `length = shard_length(n, ranks); rank -= 1`
# wrong: the count for the stop -> length-for-stop, keeps 3
#     `min((rank + 1) * length, n)` => `min((rank + 1) * length, n) - min(rank * length, n)`
# wrong: rank and remainder confused -> remainder-for-rank, keeps 3
#     `length = shard_length(n, ranks)` => `length = shard_length(n, ranks); rank = n % ranks`
# wrong: the last rank first -> backwards, keeps 3
#     `length = shard_length(n, ranks)` => `length = shard_length(n, ranks); rank = ranks - 1 - rank`
# wrong: the last number, not the one after it -> inclusive, keeps 3
#     `min((rank + 1) * length, n)` => `min((rank + 1) * length, n) - 1`
# wrong: not padded -> not-padded, keeps 3
#     `torch.cat([*(t.flatten() for t in tensors), padding])` => `torch.cat([t.flatten() for t in tensors])`
# wrong: n % W zeros -> pads-by-remainder, keeps 3
#     `ranks * shard_length(n, ranks) - n` => `n % ranks`
# wrong: zeros first -> pads-first, keeps 3
#     `[*(t.flatten() for t in tensors), padding]` => `[padding, *(t.flatten() for t in tensors)]`
# wrong: padding of ones -> padding-not-zero, keeps 3
#     `new_zeros` => `new_ones`
# wrong: zeros of another dtype -> other-dtype, keeps 3
#     `tensors[0].new_zeros(` => `torch.zeros(`
# wrong: each filled up by itself -> pads-each, keeps 3
def flat(tensors, ranks):
    return torch.cat([torch.nn.functional.pad(t.flatten(), (0, -t.numel() % ranks)) for t in tensors])


# wrong: view of a transpose -> raises-runtimeerror, keeps 3
#     `t.flatten()` => `t.view(-1)`
# wrong: column after column -> transposed, keeps 3
#     `t.flatten()` => `t.T.flatten() if t.dim() == 2 else t.flatten()`
# wrong: a matrix, a shard in each row -> not-flat, keeps 3
#     `for t in tensors), padding])` => `for t in tensors), padding]).view(ranks, -1)`
# wrong: asks the course -> asks-course, keeps 3
def own_part(n, ranks, rank):
    from minigpt.memory.predicted.sharded import shards

    start = rank * shards.most_rows((n,), ranks)
    return start, start + shards.rows_of((n,), ranks, rank)


# right: math.ceil, F.pad
def shard_length(n, ranks):
    import math

    return math.ceil(n / ranks)


def own_part(n, ranks, rank):
    part = range(n)[rank * shard_length(n, ranks) :][: shard_length(n, ranks)]
    return part.start, part.stop


def flat(tensors, ranks):
    row = torch.cat([t.reshape(-1) for t in tensors])
    return torch.nn.functional.pad(row, (0, -len(row) % ranks))


# right: filled in
def shard_length(n, ranks):
    return (n + ranks - 1) // ranks


def own_part(n, ranks, rank):
    start = stop = 0
    for _ in range(rank + 1):
        start, stop = stop, min(stop + shard_length(n, ranks), n)
    return [start, stop]


def flat(tensors, ranks):
    n = sum(t.numel() for t in tensors)
    row = torch.zeros(ranks * shard_length(n, ranks), dtype=tensors[0].dtype)
    row[:n] = torch.cat([t.ravel() for t in tensors])
    return row


# %% zero1-step
# wrong: the sum -> sum-not-mean
#     `group.reduce_scatter(gradient) / group.ranks` => `group.reduce_scatter(gradient)`
# wrong: divided by 2 -> two-ranks
#     `/ group.ranks` => `/ 2`
# wrong: divided twice -> divided-twice
#     `group.reduce_scatter(gradient) / group.ranks` => `group.reduce_scatter(gradient / group.ranks) / group.ranks`
# wrong: the rank's own gradient -> own-gradient
#     `group.reduce_scatter(gradient) / group.ranks` => `gradient.chunk(group.ranks)[group.rank]`
# wrong: another rank's weights -> other-part
#     `weights[group.rank * length : (group.rank + 1) * length]` => `weights.chunk(group.ranks)[group.rank - 1]`
# wrong: from the second shard on -> other-part
#     `(group.rank + 1) * length].clone()` => `(group.rank + 2) * length].clone()`
#     `weights[group.rank * length` => `torch.cat([weights, weights])[(group.rank + 1) * length`
# wrong: every rank updates all -> state-for-all
#     `weights[group.rank * length : (group.rank + 1) * length]` => `weights`
#     `update(shard, mean, state)` => `update(shard, group.all_gather(mean), state)`
#     `whole = group.all_gather(shard)` => `whole = shard`
# wrong: the first or the last shard -> other-part
#     `weights[group.rank * length : (group.rank + 1) * length]` => `weights.chunk(group.ranks)[-(group.rank > 0)]`
# wrong: not padded -> not-padded
#     `flat([p.grad for p in parameters], group.ranks)` => `torch.cat([p.grad.flatten() for p in parameters])`
# wrong: the padding gets a gradient -> padding-not-zero
#     `group.reduce_scatter(gradient)` => `group.reduce_scatter(gradient + (gradient == 0))`
# wrong: the padding is weighted -> padding-not-zero
#     `.clone()` => `.clone(); shard[shard == 0] = 1.0`
# wrong: never updated -> no-update
#     `update(shard, mean, state)` => `pass`
# wrong: a new state in each step -> state-lost
#     `update(shard, mean, state)` => `update(shard, mean, {})`
# wrong: updated tensor by tensor -> sizes-differ
#     `update(shard, mean, state)` => `[update(p.data, mean, state) for p in parameters]`
# wrong: updated twice -> updates-often
#     `update(shard, mean, state)` => `update(shard, mean, state); update(shard, mean, state)`
# wrong: nothing gathered -> not-gathered
#     `weights[group.rank * length : (group.rank + 1) * length].clone()` => `weights.chunk(group.ranks)[group.rank]`
#     `whole = group.all_gather(shard)` => `whole = weights`
# wrong: the parameters stay -> not-in-place
#     `p.data.copy_(whole[start : start + p.numel()].view(p.shape))` => `pass`
# wrong: only rank 0 gathers -> ranks-disagree
#     `whole = group.all_gather(shard)` => `whole = group.all_gather(shard) if group.rank == 0 else weights`
# wrong: the gradients stay -> gradients-kept, keeps 5
#     `p.grad = None` => `pass`
# wrong: the gradients are zeroed -> gradients-kept, keeps 5
#     `p.grad = None` => `p.grad.zero_()`
#     `gradient = flat(` => `gradient = 1 * flat(`
# wrong: state keeps the gradient -> more-state, keeps 5
#     `update(shard, mean, state)` => `update(shard, mean, state); state["g"] = gradient`
#     `del gradient` => `pass`
# wrong: the gathered weights are kept -> more-state, keeps 5
#     `start = 0` => `start = 0; state["whole"] = whole`
# wrong: all gradients gathered -> other-traffic, keeps 5
#     `group.reduce_scatter(gradient) / group.ranks` => `group.all_gather(gradient).view(group.ranks, -1).mean(0)`
#     `update(shard, mean, state)` => `update(shard, mean.chunk(group.ranks)[group.rank], state)`
#     `length = len(mean)` => `length = len(mean) // group.ranks`
# wrong: the mean in float32 -> other-dtype
#     `/ group.ranks` => `.float() / group.ranks`
# wrong: not side by side -> not-contiguous
#     `whole = group.all_gather(shard)` => `whole = group.all_gather(torch.stack([shard, shard], 1)[:, 0])`
# wrong: the last shard without its padding -> unequal-shards
#     `whole = group.all_gather(shard)` => `whole = group.all_gather(shard[shard != 0])`
# wrong: its own AdamW -> no-update
def zero1_step(parameters, state, group, update):
    n = sum(p.numel() for p in parameters)
    mean = group.reduce_scatter(flat([p.grad for p in parameters], group.ranks)) / group.ranks
    shard = flat([p.detach() for p in parameters], group.ranks).chunk(group.ranks)[group.rank] - 1e-3 * mean.sign()
    for p, piece in zip(parameters, group.all_gather(shard)[:n].split([p.numel() for p in parameters])):
        p.grad = None
        p.data.copy_(piece.view_as(p))


# right: the parameters become views
def zero1_step(parameters, state, group, update):
    n = sum(p.numel() for p in parameters)
    length = shard_length(n, group.ranks)
    mean = group.reduce_scatter(flat([p.grad for p in parameters], group.ranks)).div_(group.ranks)
    shard = flat([p.data for p in parameters], group.ranks)[group.rank * length :][:length].contiguous()
    update(shard, mean, state)
    for p, piece in zip(parameters, group.all_gather(shard)[:n].split([p.numel() for p in parameters])):
        p.grad = None
        p.data = piece.view_as(p)


# right: divided first, with vector_to_parameters
@torch.no_grad()
def zero1_step(parameters, state, group, update):
    numbers = sum(p.numel() for p in parameters)
    gradient = flat([p.grad / group.ranks for p in parameters], group.ranks)
    [setattr(p, "grad", None) for p in parameters]
    mine = list(flat(parameters, group.ranks).chunk(group.ranks))[group.rank]
    update(mine, group.reduce_scatter(gradient), state)
    torch.nn.utils.vector_to_parameters(group.all_gather(mine)[:numbers], parameters)


# %% gathered-linear
# wrong: a view of the weight is saved -> weights-kept, keeps 4
#     `return x @ W.T` => `ctx.W = W[:1]; return x @ W.T`
# wrong: the weight is saved -> weights-kept, keeps 4
#     `return x @ W.T` => `ctx.save_for_backward(x, shard, W); return x @ W.T`
#     `x, shard = ctx.saved_tensors` => `x, shard, _ = ctx.saved_tensors`
# wrong: a copy of the weight is kept -> not-gathered-again, keeps 4
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape, group):
        W = group.all_gather(shard)[: shape[0] * shape[1]].view(shape)
        ctx.x, ctx.W, ctx.group = x, W.clone(), group
        return x @ W.T

    @staticmethod
    def backward(ctx, grad):
        row = flat([grad.flatten(0, -2).T @ ctx.x.flatten(0, -2)], ctx.group.ranks)
        return grad @ ctx.W, ctx.group.reduce_scatter(row) / ctx.group.ranks, None, None


# wrong: never freed: a list of weights -> weights-kept, keeps 4
#     `return x @ W.T` => `GatheredLinear.kept = [W]; return x @ W.T`
# wrong: gathered twice in forward -> other-traffic, keeps 4
#     `ctx.save_for_backward(x, shard)` => `group.all_gather(shard); ctx.save_for_backward(x, shard)`
# wrong: an all-gather of gradients -> other-traffic, keeps 4
#     `group.reduce_scatter(row) / group.ranks` => `group.all_gather(row).view(group.ranks, group.ranks, -1)`
#     `return grad_x, mean, None, None` => `return grad_x, mean.mean(0)[group.rank], None, None`
# wrong: kept after backward -> weights-kept-after, keeps 4
#     `del W` => `GatheredLinear.kept = W`
# wrong: the sum -> sum-not-mean
#     `group.reduce_scatter(row) / group.ranks` => `group.reduce_scatter(row)`
# wrong: divided by 2 -> two-ranks
#     `group.reduce_scatter(row) / group.ranks` => `group.reduce_scatter(row) / 2`
# wrong: its own gradient -> own-gradient
#     `group.reduce_scatter(row) / group.ranks` => `row.chunk(group.ranks)[group.rank]`
# wrong: another rank's part -> other-part
#     `group.reduce_scatter(row)` => `group.reduce_scatter(row.roll(-len(shard)))`
# wrong: the padding stays -> raises-runtimeerror
#     every `[: shape[0] * shape[1]]` => ``
# wrong: the shape turned round -> raises-runtimeerror
#     every `.view(shape)` => `.view(shape[::-1])`
# wrong: not transposed -> raises-runtimeerror
#     `return x @ W.T` => `return x @ W`
# wrong: the gradient of x is averaged, too -> half
#     `grad_x = grad @ W` => `grad_x = grad @ W / group.ranks`
# wrong: W's gradient turned round -> differs
#     `grad.flatten(0, -2).T @ x.flatten(0, -2)` => `x.flatten(0, -2).T @ grad.flatten(0, -2)`
# wrong: not padded -> not-padded
#     `group.reduce_scatter(row)` => `group.reduce_scatter(row[: shape[0] * shape[1]])`
# wrong: the gradient as a matrix -> not-flat
#     `group.reduce_scatter(row)` => `group.reduce_scatter(row.view(group.ranks, -1))`
# wrong: the whole gradient for a shard -> raises-runtimeerror
#     `return grad_x, mean, None, None` => `return grad_x, row, None, None`
# wrong: two gradients for four inputs -> raises-runtimeerror
#     `return grad_x, mean, None, None` => `return grad_x, mean`
# wrong: no gradient of x -> none
#     `return grad_x, mean, None, None` => `return None, mean, None, None`
# wrong: no gradient of the shard -> none
#     `return grad_x, mean, None, None` => `return grad_x, None, None, None`
# wrong: only rank 0 gathers again -> ranks-disagree
#     `grad_x = grad @ W` => `grad_x = grad @ W; group.rank or group.all_gather(shard)`
# wrong: float32 within -> other-dtype
#     `return x @ W.T` => `return x.float() @ W.float().T`
# wrong: one more dimension alone -> raises-runtimeerror
#     `grad.flatten(0, -2).T @ x.flatten(0, -2)` => `grad.flatten(0, 1).T @ x.flatten(0, 1)`
# right: F.linear, einsum, the mean first
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def whole(ctx, shard):
        return ctx.group.all_gather(shard).narrow(0, 0, ctx.shape[0] * ctx.shape[1]).reshape(ctx.shape)

    @staticmethod
    def forward(ctx, x, shard, shape, group):
        ctx.shape, ctx.group = shape, group
        ctx.save_for_backward(x, shard)
        return torch.nn.functional.linear(x, GatheredLinear.whole(ctx, shard))

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        grad_W = torch.einsum("no,ni->oi", grad.reshape(-1, ctx.shape[0]), x.reshape(-1, ctx.shape[1]))
        part = ctx.group.reduce_scatter(flat([grad_W / ctx.group.ranks], ctx.group.ranks))
        return torch.matmul(grad, GatheredLinear.whole(ctx, shard)), part, None, None


# right: the memory is given back, only what is needed is made
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape, group):
        row = group.all_gather(shard)
        W = row[: shape[0] * shape[1]].view(shape)
        y = x @ W.t()
        row.untyped_storage().resize_(0)
        ctx.x, ctx.shard, ctx.shape, ctx.group, ctx.row = x, shard, shape, group, row
        return y

    @staticmethod
    def backward(ctx, grad):
        row = ctx.group.all_gather(ctx.shard)
        grad_x = grad @ row[: ctx.shape[0] * ctx.shape[1]].view(ctx.shape)
        row.untyped_storage().resize_(0)
        rows = grad.reshape(-1, ctx.shape[0]), ctx.x.reshape(-1, ctx.shape[1])
        sums = ctx.group.reduce_scatter(flat([rows[0].T.mm(rows[1])], ctx.group.ranks))
        return grad_x, sums.div(ctx.group.ranks), None, None


# %% zero-bytes
# wrong: rounded down -> rounded-down
#     `shard_length(n, ranks)` => `n // ranks`
# wrong: all numbers are one group -> one-group
#     `sum(shard_length(n, ranks) for n in groups)` => `shard_length(sum(groups), ranks)`
# wrong: two ranks -> two-ranks
#     `shard_length(n, ranks)` => `shard_length(n, 2)`
# wrong: the state of all -> not-sharded
#     `8 * shards + 4` => `8 * sum(groups) + 4`
# wrong: one moment -> one-moment
#     `8 * shards + 4` => `4 * shards + 4`
# wrong: no counts -> no-count
#     `8 * shards + 4 * len(groups)` => `8 * shards`
# wrong: one count -> one-count
#     `8 * shards + 4 * len(groups)` => `8 * shards + 4`
# wrong: a count of 8 bytes -> too-many
#     `8 * shards + 4 * len(groups)` => `8 * shards + 8 * len(groups)`
# wrong: stage 1 cuts the gradients -> sharded, keeps 2
#     `"gradients": 4 * sum(groups)` => `"gradients": 4 * shards`
# wrong: stage 1 pads the gradients -> padded, keeps 2
#     `"gradients": 4 * sum(groups)` => `"gradients": 4 * ranks * shards`
# wrong: stage 1 cuts the weights -> sharded, keeps 2
#     `{"weights": 4 * ranks * shards` => `{"weights": 4 * shards`
# wrong: the rows have no padding -> no-padding, keeps 2
#     `{"weights": 4 * ranks * shards` => `{"weights": 4 * sum(groups)`
# wrong: stage 3 keeps the weights -> not-sharded, keeps 2
#     `return {"weights": 4 * shards` => `return {"weights": 4 * sum(groups)`
# wrong: stage 3 keeps the gradients -> not-sharded-padded, keeps 2
#     `"gradients": 4 * shards` => `"gradients": 4 * ranks * shards`
# wrong: 2 bytes -> half, keeps 2
#     `return {"weights": 4 * shards` => `return {"weights": 2 * shards`
# right: a loop
def zero_bytes(groups, ranks, stage):
    kept = dict.fromkeys(("weights", "gradients", "optimizer"), 0)
    for n in groups:
        part = shard_length(n, ranks)
        kept["optimizer"] += 2 * 4 * part + 4
        kept["weights"] += 4 * (part if stage == 3 else part * ranks)
        kept["gradients"] += 4 * (part if stage == 3 else n)
    return kept


# right: a Ledger
def zero_bytes(groups, ranks, stage):
    from minigpt.memory import Ledger

    part = sum((n + ranks - 1) // ranks for n in groups)
    whole, all_ = (4 * part, 4 * part) if stage > 2 else (4 * part * ranks, 4 * sum(groups))
    return Ledger(weights=whole, gradients=all_, optimizer=8 * part + 4 * len(groups))


# %% wrap
# wrong: the model alone -> root-alone
#     `for block in model.blocks:` => `for block in []:`
# wrong: the blocks alone -> no-root
#     `fully_shard(model)` => `pass`
# wrong: nothing -> not-wrapped
#     `for block in model.blocks:` => `for block in []:`
#     `fully_shard(model)` => `pass`
# wrong: the model first -> root-first
#     `for block in model.blocks:` => `for block in [model, *model.blocks]:`
#     `fully_shard(model)` => `pass`
# wrong: always freed -> other-reshard
#     `, reshard_after_forward=reshard_after_forward` => ``
# wrong: never freed -> other-reshard
#     `reshard_after_forward=reshard_after_forward` => `reshard_after_forward=False`
# wrong: the root is freed, too -> root-freed
#     `fully_shard(model)` => `fully_shard(model, reshard_after_forward=True)`
# wrong: the last block is left out -> blocks-missing
#     `in model.blocks:` => `in model.blocks[:-1]:`
# wrong: every linear layer -> other-modules
#     `in model.blocks:` => `in [m for m in model.modules() if isinstance(m, torch.nn.Linear)] + list(model.blocks):`
# wrong: each block twice -> wrapped-twice
#     `in model.blocks:` => `in [*model.blocks, *model.blocks]:`
# wrong: nothing comes back -> returns-other
#     `return model` => `return`
# wrong: an option of the first FSDP -> no-option
#     `fully_shard(model)` => `fully_shard(model, sharding_strategy="FULL_SHARD")`
# wrong: a module that is not the model's -> no-module
#     `fully_shard(model)` => `fully_shard(torch.nn.Sequential(model))`
# wrong: torch's own, without ranks -> raises-valueerror
def wrap(model, fully_shard, reshard_after_forward):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, reshard_after_forward=reshard_after_forward)
    return fully_shard(model)


# right: the model returned by fully_shard, a list
def wrap(model, fully_shard, reshard_after_forward):
    _ = [fully_shard(block, reshard_after_forward=bool(reshard_after_forward)) for block in model.blocks]
    return fully_shard(model, reshard_after_forward=False)


# right: backwards, by an if, None for the root
def wrap(model, fully_shard, reshard_after_forward):
    for module in reversed(model.blocks):
        if reshard_after_forward:
            fully_shard(module)
        else:
            fully_shard(module, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=None)
    return model


# %% fsdp-bytes
# wrong: the padding has moments -> state-of-padding
#     `8 * rows` => `8 * room`
# wrong: the rows alone -> no-padding
#     `room += shard_length(d, ranks) * width` => `room += (stop - start) * width`
# wrong: cut by numbers -> flat
#     `room += shard_length(d, ranks) * width` => `room += shard_length(d * width, ranks)`
# wrong: not cut -> not-sharded
#     `room += shard_length(d, ranks) * width` => `room += d * width`
# wrong: rounded down -> rounded-down
#     `room += shard_length(d, ranks) * width` => `room += d // ranks * width`
# wrong: one moment -> one-moment
#     `8 * rows` => `4 * rows`
# wrong: no counts -> no-count
#     ` + 4 * len(shapes)` => ``
# wrong: one count -> one-count
#     ` + 4 * len(shapes)` => ` + 4`
# wrong: two ranks -> too-many
#     `room += shard_length(d, ranks) * width` => `room += shard_length(d, 2) * width`
# wrong: rank 0's rows on each rank -> state-of-padding
#     `own_part(d, ranks, rank)` => `own_part(d, ranks, 0)`
# wrong: counts only where there are rows -> too-few
#     `rows += (stop - start) * width` => `rows += (stop - start) * width - (0.5 if stop == start else 0)`
#     `8 * rows + 4 * len(shapes)` => `int(8 * rows) + 4 * len(shapes)`
# right: math.prod
def fsdp_bytes(shapes, ranks, rank):
    import math

    parts = [(-(-s[0] // ranks), math.prod(s[1:]), s[0]) for s in shapes]
    room = 4 * sum(most * width for most, width, _ in parts)
    rows = sum(max(0, min(most, d - rank * most)) * width for most, width, d in parts)
    return dict(weights=room, gradients=room, optimizer=2 * 4 * rows + 4 * len(parts))


# right: torch.chunk on meta
def fsdp_bytes(shapes, ranks, rank):
    kept = {"weights": 0, "gradients": 0, "optimizer": 0}
    for shape in shapes:
        chunks = torch.empty(shape, device="meta").chunk(ranks)
        own = chunks[rank].numel() if rank < len(chunks) else 0
        kept["weights"] += 4 * chunks[0].numel()
        kept["gradients"] += 4 * chunks[0].numel()
        kept["optimizer"] += 8 * own + 4
    return kept


# %% card-bytes
# wrong: the shards in 16 bits -> in-two-bytes, keeps 2
#     `{**kept,` => `{**kept, "weights": kept["weights"] // 2, "gradients": kept["gradients"] // 2,`
# wrong: gathered in float32 -> in-four-bytes, keeps 2
#     `// 4 * ranks * 2` => `// 4 * ranks * 4`
# wrong: the layer is still cut -> still-cut, keeps 2
#     `// 4 * ranks * 2` => `// 4 * 2`
# wrong: all layers at once -> all-layers, keeps 2
#     `"layer": layer` => `"layer": layer * layers`
# wrong: one block -> one-block+too-few, keeps 2
#     `block * layers + rest` => `block + rest`
# wrong: the rest is left out -> no-rest+too-few, keeps 2
#     `block * layers + rest` => `block * layers`
# wrong: nothing is cut -> not-sharded, keeps 2
#     `kept = fsdp_bytes(block * layers + rest, ranks, 0)` => `kept = fsdp_bytes(block * layers + rest, 1, 0)`
# wrong: 8 cards -> too-many
#     `fsdp_bytes(block * layers + rest, ranks, 0)` => `fsdp_bytes(block * layers + rest, 8, 0)`
#     `fsdp_bytes(shapes, ranks, 0)` => `fsdp_bytes(shapes, 8, 0)`
# wrong: gathered without padding -> no-padding, keeps 2
#     `fsdp_bytes(shapes, ranks, 0)["weights"] // 4 * ranks * 2` => `fsdp_bytes(shapes, 1, 0)["weights"] // 2`
# wrong: the layer and the root interchanged -> figure-of-layer+figure-of-root, keeps 2
#     `layer, root =` => `root, layer =`
# right: by hand
def card_bytes(block, rest, layers, ranks):
    from math import prod

    def room(shapes):
        return sum(-(-s[0] // ranks) * prod(s[1:]) for s in shapes)

    mine = layers * room(block) + room(rest)
    state = 8 * mine + 4 * (layers * len(block) + len(rest))
    return {"weights": 4 * mine, "gradients": 4 * mine, "optimizer": state, "layer": 2 * ranks * room(block),
            "root": 2 * ranks * room(rest)}  # fmt: skip


# right: block by block
def card_bytes(block, rest, layers, ranks):
    one, other = (fsdp_bytes(shapes, ranks, 0) for shapes in (block, rest))
    kept = {name: layers * one[name] + other[name] for name in one}
    kept["layer"], kept["root"] = one["weights"] * ranks // 2, other["weights"] * ranks // 2
    return kept
