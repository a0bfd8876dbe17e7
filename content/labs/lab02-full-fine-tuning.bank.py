# Wrong and right answers to lab 02, for tools/bank.py. Never released.
# ruff: noqa: F811, F821

# %% exercise=training-step wrong="the mean of the means (2024)" verdict=mean-of-means
def training_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        part = model(tokens, targets) / len(micro_batches)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="means summed" verdict=sum-of-means
def training_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        part = model(tokens, targets)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss / len(micro_batches)


# %% exercise=training-step wrong="summed over the tokens" verdict=never-divided
def training_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    loss, total = 0.0, 0
    for tokens, targets in micro_batches:
        count = int((targets != IGNORE).sum())
        part = model(tokens, targets) * count
        part.backward()
        loss, total = loss + part.item(), total + count
    optimizer.step()
    return loss / total


# %% exercise=training-step wrong="masked positions counted" verdict=all-positions
def training_step(model, optimizer, micro_batches):
    total = sum(targets.numel() for _, targets in micro_batches)
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        part = model(tokens, targets) * (int((targets != IGNORE).sum()) / total)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="padding weighs too: B * T of each" verdict=mean-of-means
def training_step(model, optimizer, micro_batches):
    total = sum(targets.numel() for _, targets in micro_batches)
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        part = model(tokens, targets) * (targets.numel() / total)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="divided twice" verdict=divided-twice
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        part = model(tokens, targets) * count / sum(counts)
        (part / len(counts)).backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="zero_grad in the loop" verdict=only-last
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        optimizer.zero_grad()
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="zero_grad forgotten" verdict=stale
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="cleared after the step only" verdict=stale
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        loss += part.item()
    optimizer.step()
    optimizer.zero_grad()
    return loss


# %% exercise=training-step wrong="a step for each micro-batch" verdict=steps
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        optimizer.zero_grad()
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        optimizer.step()
        loss += part.item()
    return loss


# %% exercise=training-step wrong="no step at all" verdict=steps
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        loss += part.item()
    return loss


# %% exercise=training-step wrong="all graphs held until one backward" verdict=graphs-held points=3
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    loss = sum(model(*batch) * n / sum(counts) for batch, n in zip(micro_batches, counts))
    loss.backward()
    optimizer.step()
    return loss.item()


# %% exercise=training-step wrong="the loss is a tensor" verdict=loss-tensor points=3
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        loss += part.detach()
    optimizer.step()
    return loss


# %% exercise=training-step wrong="returns the mean of the means" verdict=mean-of-means points=3
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    losses = []
    for (tokens, targets), count in zip(micro_batches, counts):
        loss = model(tokens, targets)
        (loss * count / sum(counts)).backward()
        losses.append(loss.item())
    optimizer.step()
    return sum(losses) / len(losses)


# %% exercise=training-step wrong="nothing returned" verdict=returns-nothing
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    optimizer.zero_grad()
    for (tokens, targets), count in zip(micro_batches, counts):
        (model(tokens, targets) * count / sum(counts)).backward()
    optimizer.step()


# %% exercise=training-step wrong="the model is left in eval mode" verdict=other-mode
def training_step(model, optimizer, micro_batches):
    counts = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    model.eval()
    optimizer.zero_grad()
    loss = 0.0
    for (tokens, targets), count in zip(micro_batches, counts):
        part = model(tokens, targets) * count / sum(counts)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


# %% exercise=training-step right="summed losses, gradients divided at the end, cleared twice"
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


# %% exercise=training-step right="cleared between the first forward and its backward"
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


# %% exercise=static-buckets wrong="no step counts" verdict=no-step-counts points=1
def static_buckets(config):
    n = (config.vocab_size + config.context + 1) * config.n_embd
    n += config.n_layer * (12 * config.n_embd**2 + 2 * config.n_embd)
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 8 * n}


# %% exercise=static-buckets wrong="the tied head counted" verdict=tied-head-twice+heads-step-count
def static_buckets(config):
    C, L = config.n_embd, config.n_layer
    n = (2 * config.vocab_size + config.context) * C + L * (12 * C * C + 2 * C) + C
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * (8 * L + 4)}


# %% exercise=static-buckets wrong="a master copy" verdict=third-moment points=1
def static_buckets(config):
    C, L = config.n_embd, config.n_layer
    n = (config.vocab_size + config.context) * C + L * (12 * C * C + 2 * C) + C
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 12 * n + 4 * (8 * L + 3)}


# %% exercise=static-buckets wrong="one moment" verdict=one-moment points=1
def static_buckets(config):
    C, L = config.n_embd, config.n_layer
    n = (config.vocab_size + config.context) * C + L * (12 * C * C + 2 * C) + C
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 4 * n + 4 * (8 * L + 3)}


# %% exercise=static-buckets wrong="the step count of the last norm forgotten" verdict=last-norms-step-count points=1
def static_buckets(config):
    C, L = config.n_embd, config.n_layer
    n = (config.vocab_size + config.context) * C + L * (12 * C * C + 2 * C) + C
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * (8 * L + 2)}


# %% exercise=static-buckets wrong="16-bit weights and gradients" verdict=two-byte-weights+two-byte-gradients points=1
def static_buckets(config):
    C, L = config.n_embd, config.n_layer
    n = (config.vocab_size + config.context) * C + L * (12 * C * C + 2 * C) + C
    return {"weights": 2 * n, "gradients": 2 * n, "optimizer": 8 * n + 4 * (8 * L + 3)}


# %% exercise=static-buckets wrong="nano's tensors for every model" verdict=nanos-step-counts points=1
def static_buckets(config):
    C = config.n_embd
    n = (config.vocab_size + config.context) * C + config.n_layer * (12 * C * C + 2 * C) + C
    return {"weights": 4 * n, "gradients": 4 * n, "optimizer": 8 * n + 4 * 35}


# %% exercise=static-buckets wrong="asks the course" verdict=asks-course
def static_buckets(config):
    from minigpt.memory import TrainingPlan, predict

    ledger = predict(config, TrainingPlan(batch=1, seq_len=1)).ledger
    return {"weights": ledger.weights, "gradients": ledger.gradients, "optimizer": ledger.optimizer}


# %% exercise=static-buckets right="from a list of tensors"
def static_buckets(config):
    C = config.n_embd
    block = [C, C * C, C * C, C * C, C * C, C, 4 * C * C, 4 * C * C]
    sizes = [config.vocab_size * C, config.context * C] + block * config.n_layer + [C]
    weights = sum(4 * size for size in sizes)
    return dict(weights=weights, gradients=weights, optimizer=sum(2 * 4 * size + 4 for size in sizes))


# %% exercise=static-buckets right="numpy integers"
def static_buckets(config):
    import numpy as np

    C, L = np.int64(config.n_embd), np.int64(config.n_layer)
    n = config.vocab_size * C + config.context * C + C + L * (4 * C**2 + 2 * (C * 4 * C) + 2 * C)
    return {"optimizer": 2 * (4 * n) + 4 * (3 + 8 * L), "gradients": 4 * n, "weights": 4 * n}


# %% exercise=saved-by-block wrong="q, k and v have an input each" verdict=input-three-times
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 18 * 4 * tokens * config.n_embd + 4 * tokens * (config.n_head + 4)


# %% exercise=saved-by-block wrong="o_proj's input counted again" verdict=output-twice
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 17 * 4 * tokens * config.n_embd + 4 * tokens * (config.n_head + 4)


# %% exercise=saved-by-block wrong="both of these" verdict=input-three-times+output-twice
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 19 * 4 * tokens * config.n_embd + 4 * tokens * (config.n_head + 4)


# %% exercise=saved-by-block wrong="no statistics" verdict=no-statistics
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 16 * 4 * tokens * config.n_embd + 4 * tokens * config.n_head


# %% exercise=saved-by-block wrong="no logsumexp" verdict=no-logsumexp
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 16 * 4 * tokens * config.n_embd + 16 * tokens


# %% exercise=saved-by-block wrong="one logsumexp a token" verdict=one-logsumexp
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 16 * 4 * tokens * config.n_embd + 4 * tokens * 5


# %% exercise=saved-by-block wrong="units of u alone" verdict=no-logsumexp+no-statistics
def saved_by_block(config, batch, seq_len):
    return 16 * 4 * batch * seq_len * config.n_embd


# %% exercise=saved-by-block wrong="the GELU's input forgotten" verdict=one-mlp-tensor-missing
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 12 * 4 * tokens * config.n_embd + 4 * tokens * (config.n_head + 4)


# %% exercise=saved-by-block wrong="a score matrix" verdict=scores
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 4 * tokens * (16 * config.n_embd + config.n_head + 4 + config.n_head * seq_len)


# %% exercise=saved-by-block wrong="2 bytes a number" verdict=half
def saved_by_block(config, batch, seq_len):
    tokens = batch * seq_len
    return 2 * tokens * (16 * config.n_embd + config.n_head + 4)


# %% exercise=saved-by-block wrong="the folk figure: 34 bytes a number of the stream" verdict=published-34
def saved_by_block(config, batch, seq_len):
    return 34 * batch * seq_len * config.n_embd


# %% exercise=saved-by-block wrong="three heads in every model" verdict=too-few
def saved_by_block(config, batch, seq_len):
    return 4 * batch * seq_len * (16 * config.n_embd + 7)


# %% exercise=saved-by-block right="tensor by tensor"
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


# %% exercise=saved-by-block right="one product, as a tensor"
def saved_by_block(config, batch, seq_len):
    return torch.tensor(4 * batch * seq_len) * (16 * config.n_embd + config.n_head + 4)


# %% exercise=saved-by-model wrong="the blocks alone" verdict=blocks-alone
def saved_by_model(config, batch, seq_len):
    return config.n_layer * saved_by_block(config, batch, seq_len)


# %% exercise=saved-by-model wrong="one block for all" verdict=one-block
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * seq_len + 8 * n * config.n_embd + 8 * n + 4 * n * config.vocab_size + 4
    return saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="no log-probabilities" verdict=no-log-probabilities
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * seq_len + 8 * n * config.n_embd + 8 * n + 4
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="logits as well" verdict=logits-too
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * seq_len + 8 * n * config.n_embd + 8 * n + 8 * n * config.vocab_size + 4
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="the last norm's output forgotten" verdict=half-last-norm
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * seq_len + 4 * n * config.n_embd + 8 * n + 4 * n * config.vocab_size + 4
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="positions for each sequence" verdict=positions-a-sequence
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * n + 8 * n * config.n_embd + 8 * n + 4 * n * config.vocab_size + 4
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="targets forgotten" verdict=eight-bytes-a-token-missing
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 8 * n + 8 * seq_len + 8 * n * config.n_embd + 8 * n + 4 * n * config.vocab_size + 4
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="the number of targets forgotten" verdict=no-number-of-targets
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * seq_len + 8 * n * config.n_embd + 8 * n + 4 * n * config.vocab_size
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="a vocabulary of 200 for every model" verdict=too-many
def saved_by_model(config, batch, seq_len):
    n = batch * seq_len
    ends = 16 * n + 8 * seq_len + 8 * n * config.n_embd + 8 * n + 4 * n * 200 + 4
    return config.n_layer * saved_by_block(config, batch, seq_len) + ends


# %% exercise=saved-by-model wrong="asks the course" verdict=asks-course
def saved_by_model(config, batch, seq_len):
    from minigpt.memory import TrainingPlan, predict

    return predict(config, TrainingPlan(batch=batch, seq_len=seq_len)).ledger.activations


# %% exercise=saved-by-model right="without saved_by_block"
def saved_by_model(config, batch, seq_len):
    C, L, H, V = config.n_embd, config.n_layer, config.n_head, config.vocab_size
    floats_per_token = L * (16 * C + H + 4) + 2 * C + 2 + V
    return 4 * (batch * seq_len * floats_per_token + 1) + 8 * (2 * batch * seq_len + seq_len)


# %% exercise=saved-by-model right="summed part by part"
def saved_by_model(config, batch, seq_len):
    tokens, total = batch * seq_len, 0
    for size in (8 * tokens, 8 * seq_len):
        total += size
    for _ in range(config.n_layer):
        total += saved_by_block(config, batch, seq_len)
    total += 2 * (4 * tokens * config.n_embd) + 2 * (4 * tokens)
    total += 4 * tokens * config.vocab_size
    return total + 8 * tokens + 4
