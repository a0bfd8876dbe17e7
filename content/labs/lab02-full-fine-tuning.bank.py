# Wrong and right answers to lab 02, as tools/bank_entries.py reads them. Never released.

# %% training-step
# wrong: the mean of the means (2024) -> mean-of-means
#     `* (count / sum(counts))` => `/ len(counts)`
# wrong: means summed -> sum-of-means
#     ` * (count / sum(counts))` => ``
#     `return loss` => `return loss / len(counts)`
# wrong: summed over the tokens -> never-divided
#     `(count / sum(counts))` => `count`
#     `return loss` => `return loss / sum(counts)`
# wrong: masked positions counted -> all-positions
#     `sum(counts)` => `sum(targets.numel() for _, targets in micro_batches)`
# wrong: padding weighs too: B * T of each -> by-size
#     `int((targets != IGNORE).sum())` => `targets.numel()`
# wrong: divided twice -> divided-twice
#     `part.backward()` => `(part / len(counts)).backward()`
# wrong: zero_grad in the loop -> only-last
#     `optimizer.zero_grad()` => ``
#     `part.backward()` => `optimizer.zero_grad(); part.backward()`
# wrong: zero_grad forgotten -> stale
#     `optimizer.zero_grad()` => ``
# wrong: cleared after the step only -> stale
#     `optimizer.zero_grad()` => ``
#     `optimizer.step()` => `optimizer.step(); optimizer.zero_grad()`
# wrong: a step for each micro-batch -> steps
#     `optimizer.zero_grad()` => ``
#     `part.backward()` => `optimizer.zero_grad(); part.backward(); optimizer.step()`
#     `optimizer.step()` => ``
# wrong: no step at all -> steps
#     `optimizer.step()` => ``
# wrong: the loss is a tensor -> loss-tensor, keeps 3
#     `part.item()` => `part.detach()`
# wrong: returns the mean of the means -> mean-of-means, keeps 3
#     `part.item()` => `part.item() * sum(counts) / count / len(counts)`
# wrong: nothing returned -> returns-nothing
#     `return loss` => ``
# wrong: the model is left in eval mode -> other-mode
#     `optimizer.zero_grad()` => `model.eval(); optimizer.zero_grad()`
# wrong: clipped on the way -> clipped
#     `optimizer.step()` => `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()`
# wrong: the loss is rounded -> rounded, keeps 3
#     `return loss` => `return round(loss, 4)`
# wrong: the loss of the last micro-batch -> only-last-mean, keeps 3
#     `loss += part.item()` => `loss = part.item() * sum(counts) / count`
# wrong: the loss after the step -> differs, keeps 3
#     `return loss` => `with torch.no_grad(): return sum(model(*batch).item() for batch in micro_batches)`
# wrong: weights decay by hand -> other-weights
#     `optimizer.step()` => `optimizer.step(); [p.data.mul_(0.99) for p in model.parameters()]`
# wrong: cleared before the step -> none
#     `optimizer.step()` => `optimizer.zero_grad(); optimizer.step()`
# wrong: two steps -> steps
#     `optimizer.step()` => `optimizer.step(); optimizer.step()`
# wrong: divided by the tokens so far -> differs
#     `sum(counts))` => `sum(counts[: counts.index(count) + 1]))`
# wrong: token 0 taken for padding -> differs
#     `targets != IGNORE` => `targets > 0`
# wrong: the mask is taken off the targets -> changes-arguments
#     `optimizer.zero_grad()` => `optimizer.zero_grad(); [t.masked_fill_(t == IGNORE, 0) for _, t in micro_batches]`
# wrong: forward in bfloat16 -> differs
#     `part = model(tokens, targets)` => `with torch.autocast("cpu", torch.bfloat16): part = model(tokens, targets)`
# wrong: the embedding is frozen -> left-frozen
#     `optimizer.zero_grad()` => `model.token_embedding.requires_grad_(False); optimizer.zero_grad()`
# wrong: the graph is retained -> graphs-held, keeps 3
#     `part.backward()` => `part.backward(retain_graph=True)`
# wrong: all micro-batches in one forward -> raises-runtimeerror
#     `zip(micro_batches, counts):` => `[(map(torch.cat, zip(*micro_batches)), sum(counts))]:`
# wrong: an int -> wrong-type, keeps 3
#     `return loss` => `return int(loss)`
# wrong: the course's loop -> asks-course
def training_step(model, optimizer, micro_batches):
    from minigpt.train import TrainPlan, train

    plan = TrainPlan(steps=1, lr=0.1, schedule="constant", accumulation=len(micro_batches), clip=None)
    return train(model, micro_batches, plan, optimizer=optimizer, progress=False).losses[-1]


# wrong: all graphs held until one backward -> graphs-held, keeps 3
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    loss = sum(model(*batch) * n / sum(counts) for batch, n in zip(micro_batches, counts))
    loss.backward()
    optimizer.step()
    return loss.item()


# right: summed losses, gradients divided at the end, cleared twice
def training_step(model, optimizer, micro_batches):
    model.zero_grad(set_to_none=False)
    total, summed = 0, 0.0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")
        loss.backward()
        total += (targets != IGNORE).sum().item()
        summed += loss.item()
    for parameter in model.parameters():
        parameter.grad /= total
    optimizer.step()
    optimizer.zero_grad()
    return summed / total


# right: gradients by autograd.grad, and a partial
import functools


def _step(ignored, model, optimizer, micro_batches):
    total, loss = sum(int((targets != ignored).sum()) for _, targets in micro_batches), 0.0
    parameters = list(model.parameters())
    summed = [torch.zeros_like(parameter) for parameter in parameters]
    for tokens, targets in reversed(micro_batches):
        part = model(tokens, targets) * int((targets != ignored).sum())
        for so_far, gradient in zip(summed, torch.autograd.grad(part, parameters)):
            so_far += gradient
        loss += part.item()
    for parameter, gradient in zip(parameters, summed):
        parameter.grad = gradient / total
    optimizer.step()
    return loss / total


training_step = functools.partial(_step, IGNORE)


# right: the loss is numpy's
def training_step(model, optimizer, micro_batches):
    import numpy as np

    counts = np.array([int((targets != IGNORE).sum()) for _, targets in micro_batches])
    optimizer.zero_grad()
    losses = []
    for (tokens, targets), share in zip(micro_batches, counts / counts.sum()):
        part = model(tokens, targets)
        (part * share).backward()
        losses.append(part.item())
    optimizer.step()
    return np.dot(losses, counts) / counts.sum()


# right: cleared between the first forward and its backward
def training_step(model, optimizer, micro_batches):
    total = torch.cat([targets.flatten() for _, targets in micro_batches]).ne(IGNORE).sum()
    loss = 0.0
    for i, (tokens, targets) in enumerate(micro_batches):
        part = model(tokens, targets) * targets.ne(IGNORE).sum() / total
        if i == 0:
            optimizer.zero_grad()
        part.backward()
        loss += float(part)
    optimizer.step()
    return loss


# %% static-buckets
# wrong: no step counts -> no-step-counts, keeps 1
#     ` + 4 * tensors` => ``
# wrong: the tied head counted -> tied-head-twice+heads-step-count
#     `(config.vocab_size` => `(2 * config.vocab_size`
#     `2 + L * 8` => `3 + L * 8`
# wrong: a master copy -> third-moment, keeps 1
#     `8 * parameters` => `12 * parameters`
# wrong: one moment -> one-moment, keeps 1
#     `8 * parameters` => `4 * parameters`
# wrong: the step count of the last norm forgotten -> last-norms-step-count, keeps 1
#     `L * 8 + 1` => `L * 8`
# wrong: 16-bit weights and gradients -> two-byte-weights+two-byte-gradients, keeps 1
#     `"weights": 4` => `"weights": 2`
#     `"gradients": 4` => `"gradients": 2`
# wrong: nano's tensors for every model -> nanos-step-counts, keeps 1
#     `2 + L * 8 + 1` => `35`
# wrong: step counts of 8 bytes -> eight-byte-step-counts, keeps 1
#     `4 * tensors` => `8 * tensors`
# wrong: positions forgotten -> no-positions
#     ` + config.context` => ``
# wrong: the last norm forgotten -> no-last-norm
#     `2 * C) + C` => `2 * C)`
# wrong: one step count -> one-step-count, keeps 1
#     `4 * tensors` => `4`
# wrong: floats -> float-for-int, keeps 1
#     `"weights": 4 * parameters` => `"weights": 4.0 * parameters`
# wrong: numbers and not bytes -> quarter, keeps 1
#     `"weights": 4 * parameters, "gradients": 4 * parameters` => `"weights": parameters, "gradients": parameters`
# wrong: a tuple -> wrong-type
#     `"optimizer": 8 * parameters + 4 * tensors}` => `"optimizer": 8 * parameters + 4 * tensors}.values()`
# wrong: asks the course -> asks-course
def static_buckets(config):
    from minigpt.memory import TrainingPlan, predict

    ledger = predict(config, TrainingPlan(batch=1, seq_len=1)).ledger
    return {"weights": ledger.weights, "gradients": ledger.gradients, "optimizer": ledger.optimizer}


# right: from a list of tensors
def static_buckets(config):
    C = config.n_embd
    block = [C, C * C, C * C, C * C, C * C, C, 4 * C * C, 4 * C * C]
    sizes = [config.vocab_size * C, config.context * C] + block * config.n_layer + [C]
    weights = sum(4 * size for size in sizes)
    return dict(weights=weights, gradients=weights, optimizer=sum(2 * 4 * size + 4 for size in sizes))


# right: arrays of one element
def static_buckets(config):
    import numpy as np

    C = np.array([config.n_embd])
    n = (config.vocab_size + config.context + 1) * C + config.n_layer * (12 * C * C + 2 * C)
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * (3 + 8 * config.n_layer)}


# right: numpy integers
def static_buckets(config):
    import numpy as np

    C, L = np.int64(config.n_embd), np.int64(config.n_layer)
    n = config.vocab_size * C + config.context * C + C + L * (4 * C**2 + 2 * (C * 4 * C) + 2 * C)
    return {"optimizer": 2 * (4 * n) + 4 * (3 + 8 * L), "gradients": 4 * n, "weights": 4 * n}


# %% saved-by-block
# wrong: q, k and v have an input each -> input-three-times
#     `2 * u + 4 * u` => `4 * u + 4 * u`
# wrong: o_proj's input counted again -> output-twice
#     `2 * u + 4 * u` => `2 * u + 5 * u`
# wrong: both of these -> input-three-times+output-twice
#     `2 * u + 4 * u` => `4 * u + 5 * u`
# wrong: no statistics -> no-statistics
#     `config.n_head + 4` => `config.n_head`
# wrong: no logsumexp -> no-logsumexp
#     `config.n_head + 4` => `4`
# wrong: one logsumexp a token -> one-logsumexp
#     `config.n_head + 4` => `1 + 4`
# wrong: one norm's statistics -> one-statistic
#     `config.n_head + 4` => `config.n_head + 2`
# wrong: the batch forgotten -> one-sequence
#     `batch * seq_len` => `seq_len`
# wrong: the logsumexp without the batch -> logsumexp-of-one-sequence
#     `4 * tokens * (config.n_head + 4)` => `4 * seq_len * config.n_head + 16 * tokens`
# wrong: the statistics without the batch -> statistics-of-one-sequence
#     `4 * tokens * (config.n_head + 4)` => `4 * tokens * config.n_head + 16 * seq_len`
# wrong: units of u alone -> no-logsumexp+no-statistics
#     ` + 4 * tokens * (config.n_head + 4)` => ``
# wrong: the GELU's input forgotten -> one-mlp-tensor-missing
#     `8 * u` => `4 * u`
# wrong: a score matrix -> scores
#     `config.n_head + 4` => `config.n_head * seq_len + config.n_head + 4`
# wrong: 2 bytes a number -> half
#     every `4 * tokens` => `2 * tokens`
# wrong: two heads in every model -> too-few
#     `config.n_head + 4` => `2 + 4`
# wrong: the context for the length -> whole-context
#     `batch * seq_len` => `batch * config.context`
# wrong: the heads' width for their number -> too-many
#     `config.n_head + 4` => `config.n_embd // config.n_head + 4`
# wrong: no q, k and v -> no-qkv
#     `2 * u + 4 * u` => `2 * u + u`
# wrong: a float -> float-for-int
#     `u = 4 * tokens` => `u = 4.0 * tokens`
# wrong: the folk figure: 34 bytes a number of the stream -> published-34
def saved_by_block(config, batch, seq_len):
    return 34 * batch * seq_len * config.n_embd


# right: tensor by tensor
def saved_by_block(config, batch, seq_len):
    B, T, C, H = batch, seq_len, config.n_embd, config.n_head
    shapes = [(B, T, C)] * 2 + [(B, T)] * 2  # attn_norm
    shapes += [(B, H, T, C // H)] * 4 + [(B, H, T)]  # q k v y, logsumexp
    shapes += [(B, T, C)] * 2 + [(B, T)] * 2  # mlp_norm
    shapes += [(B, T, 4 * C)] * 2
    numbers = 0
    for shape in shapes:
        size = 1
        for side in shape:
            size *= side
        numbers += size
    return 4 * numbers


# right: one product, as a tensor
def saved_by_block(config, batch, seq_len):
    return torch.tensor(4 * batch * seq_len) * (16 * config.n_embd + config.n_head + 4)


# %% saved-by-model
# wrong: the blocks alone -> blocks-alone
#     `indices + ` => ``
#     ` + last_norm + loss` => ``
# wrong: one block for all -> one-block
#     `config.n_layer * ` => ``
# wrong: no log-probabilities -> no-log-probabilities
#     `4 * tokens * config.vocab_size + ` => ``
# wrong: logits as well -> logits-too
#     `4 * tokens * config.vocab_size` => `8 * tokens * config.vocab_size`
# wrong: the last norm's output forgotten -> half-last-norm
#     `2 * 4 * tokens` => `4 * tokens`
# wrong: positions for each sequence -> positions-a-sequence
#     `8 * seq_len` => `8 * tokens`
# wrong: targets forgotten -> eight-bytes-a-token-missing
#     `config.vocab_size + 8 * tokens` => `config.vocab_size`
# wrong: the number of targets forgotten -> no-number-of-targets
#     `8 * tokens + 4` => `8 * tokens`
# wrong: positions up to the context -> positions-to-the-context
#     `8 * seq_len` => `8 * config.context`
# wrong: a block too few -> block-too-few
#     `config.n_layer * ` => `(config.n_layer - 1) * `
# wrong: int32 indices -> four-byte-indices
#     `8 * tokens + 8 * seq_len` => `4 * tokens + 4 * seq_len`
#     `config.vocab_size + 8 * tokens` => `config.vocab_size + 4 * tokens`
# wrong: logits of 16 bits -> too-few
#     `4 * tokens * config.vocab_size` => `2 * tokens * config.vocab_size`
# wrong: a vocabulary of 200 for every model -> too-few
#     `config.vocab_size` => `200`
# wrong: asks the course -> asks-course
def saved_by_model(config, batch, seq_len):
    from minigpt.memory import TrainingPlan, predict

    return predict(config, TrainingPlan(batch=batch, seq_len=seq_len)).ledger.activations


# right: without saved_by_block
def saved_by_model(config, batch, seq_len):
    C, L, H, V = config.n_embd, config.n_layer, config.n_head, config.vocab_size
    floats_per_token = L * (16 * C + H + 4) + 2 * C + 2 + V
    return 4 * (batch * seq_len * floats_per_token + 1) + 8 * (2 * batch * seq_len + seq_len)


# right: summed part by part
def saved_by_model(config, batch, seq_len):
    tokens, total = batch * seq_len, 0
    for size in (8 * tokens, 8 * seq_len):
        total += size
    for _ in range(config.n_layer):
        total += saved_by_block(config, batch, seq_len)
    total += 2 * (4 * tokens * config.n_embd) + 2 * (4 * tokens)
    total += 4 * tokens * config.vocab_size
    return total + 8 * tokens + 4
