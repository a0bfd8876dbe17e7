"""The forward passes, on sizes: MiniGPT, the llama family and gpt2, each as its own code runs it.

Local variables matter: a name that is still bound keeps its storage alive, here as in the real model. So
these functions follow the real ones (``minigpt.model``; transformers 5.17 ``modeling_llama``,
``modeling_gpt2``) line by line, down to which names they keep.

Symbols: B batch, T sequence, C width, H heads, D head width, K = H_kv * D, I inner width, V vocabulary.
"""

from __future__ import annotations

from functools import partial

from minigpt.memory.engine import ops
from minigpt.memory.engine.checkpointing import checkpoint
from minigpt.memory.engine.linears import Linears
from minigpt.memory.engine.tape import TEMPORARY, Leaf, Tape, Value
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.plan import TrainingPlan

INT64 = 8


class Forward:
    """One model's forward pass on a tape. Makes the weights; ``loss(tokens, targets)`` runs the pass."""

    def __init__(self, tape: Tape, architecture: Architecture, plan: TrainingPlan) -> None:
        self.tape, self.a, self.plan = tape, architecture, plan
        self.linear = Linears(tape, architecture, plan)
        self.weights, self.compute = self.linear.weights, self.linear.compute
        self.rows = plan.tokens
        self.outputs: list = []  # what the caller gets besides the loss
        # Splitting or merging heads moves data unless a dimension is 1.
        self.heads_move = architecture.n_head > 1 and plan.seq_len > 1
        self.batch_moves = self.heads_move and plan.batch > 1
        # Repeated or cached keys and values are in order already.
        self.one_for_all = 1 == architecture.n_kv_head < architecture.n_head and plan.batch > 1
        self.pairs_move = self.batch_moves and architecture.n_head == architecture.n_kv_head and not plan.use_cache

    def loss(self, tokens: Value, targets: Value) -> Value:
        run = {"minigpt": self._minigpt, "gpt2": self._gpt2}.get(self.a.family, self._llama)
        self.embedded = None
        loss = run(tokens, targets)
        self.linear.cached_casts.clear()  # autocast forgets its cache when its block ends
        if self.embedded is not None:
            self.outputs.append(self.embedded)  # the loss leads to it, and to its gradient
        return loss

    # ------------------------------------------------------------ the models

    def _minigpt(self, tokens: Value, targets: Value) -> Value:
        tape, w = self.tape, self.weights
        positions = tape.constant(self.plan.seq_len, INT64)
        x = self._embed(tokens, positions, "positions")
        for i in range(self.a.n_layer):
            tape.block = f"block {i}"
            x = self._block(partial(self._minigpt_block, at=f"blocks.{i}."), x)
        tape.block = "head"
        logits = self.linear(ops.layer_norm(tape, x, w["norm"], self.rows), "embedding", self.a.vocab_size)
        if self.plan.holds == "outputs":
            self.outputs.append(logits)
        return ops.cross_entropy(tape, self._upcast(logits), targets)

    def _minigpt_block(self, x: Value, at: str) -> Value:
        tape, w = self.tape, self.weights
        x = ops.add(tape, x, self._minigpt_attention(ops.layer_norm(tape, x, w[at + "attn_norm"], self.rows), at))
        return ops.add(tape, x, self._minigpt_mlp(ops.layer_norm(tape, x, w[at + "mlp_norm"], self.rows), at))

    def _minigpt_attention(self, x: Value, at: str) -> Value:
        q, k, v = (self.linear(x, at + name, self.a.n_embd) for name in "qkv")
        y = self._sdpa(q, k, v) if self.plan.attention == "sdpa" else self._minigpt_eager(q, k, v)
        if self.plan.attention == "eager" and self.heads_move:
            y = ops.copy(self.tape, y, gradient_copied=self.batch_moves)
        return self.linear(y, at + "o", self.a.n_embd)

    def _minigpt_eager(self, q: Value, k: Value, v: Value) -> Value:
        tape, T = self.tape, self.plan.seq_len
        scores = ops.scale(tape, self._scores(q, k))
        everything = tape.constant(T * T, 1)
        future = tape.constant(T * T, 1)
        del everything
        scores = ops.mask_fill(tape, scores, future)
        weights = ops.cast(tape, ops.softmax(tape, ops.cast(tape, scores, 4)), v.itemsize)
        return self._weigh(weights, v)

    def _minigpt_mlp(self, x: Value, at: str) -> Value:
        h = self.linear(x, at + "up", self.a.n_inner)
        return self.linear(ops.gelu(self.tape, h), at + "down", self.a.n_embd)

    def _llama(self, tokens: Value, targets: Value) -> Value:
        hidden = self._llama_model(tokens)
        self.tape.block = "head"
        logits = self.linear(ops.view(self.tape, hidden), "embedding" if self.a.tied else "head", self.a.vocab_size)
        return self._hugging_face_loss(logits, targets)

    def _llama_model(self, tokens: Value) -> Value:
        tape, plan, D = self.tape, self.plan, self.a.head_dim
        embedded = ops.embedding(tape, tokens, self.weights["embedding"], self.a.n_embd)
        self._require_gradient(embedded)
        positions = tape.constant(plan.seq_len, INT64)
        mask = tape.constant(plan.batch * plan.seq_len**2, embedded.itemsize) if plan.attention == "eager" else None
        cos, sin = (tape.constant(plan.seq_len * D, embedded.itemsize) for _ in range(2))
        hidden = embedded
        for i in range(self.a.n_layer):
            tape.block = f"block {i}"
            block = partial(self._llama_block, at=f"blocks.{i}.", positions=positions, cos=cos, sin=sin, mask=mask)
            hidden = self._block(block, hidden)
        tape.block = "norm"
        hidden = self._rms_norm(hidden, "norm", self.rows)
        del positions
        return hidden

    def _llama_block(self, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask) -> Value:
        residual = hidden
        hidden = self._rms_norm(hidden, at + "attn_norm", self.rows)
        hidden, _scores = self._llama_attention(hidden, at, cos, sin, mask)  # bound to the block's end, there too
        hidden = ops.add(self.tape, residual, hidden)
        residual = hidden
        hidden = self._rms_norm(hidden, at + "mlp_norm", self.rows)
        hidden = self._llama_mlp(hidden, at)
        return ops.add(self.tape, residual, hidden)

    def _llama_attention(self, hidden: Value, at: str, cos: Value, sin: Value, mask: Value | None) -> tuple:
        """The output, and eager attention's weights, which transformers returns beside it."""
        tape, a, D = self.tape, self.a, self.a.head_dim
        q = self.linear(hidden, at + "q", a.n_head * D)
        if a.qk_norm:  # qwen3 norms each head before it rotates
            q = self._rms_norm(q, at + "q_norm", self.rows * a.n_head)
        k = self.linear(hidden, at + "k", a.n_kv_head * D)
        if a.qk_norm:
            k = self._rms_norm(k, at + "k_norm", self.rows * a.n_kv_head)
        v = self.linear(hidden, at + "v", a.n_kv_head * D)
        if self.heads_move:  # after the rotation's slices the gradient's layout is another
            q = ops.view(tape, q, gradient_copied=True)
        if self.plan.seq_len > 1 and a.n_kv_head > 1:
            k = ops.view(tape, k, gradient_copied=True)
        q, k = self._rotate_both(q, k, cos, sin)
        if self.plan.use_cache:
            k, v = self._cache(k, v)
        y, weights = self._attend(q, k, v, mask)
        return self.linear(y, at + "o", a.n_embd), weights

    def _rotate_both(self, q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
        return ops.rotate(self.tape, q, cos, sin), ops.rotate(self.tape, k, cos, sin)

    def _llama_mlp(self, x: Value, at: str) -> Value:
        gate = self.linear(x, at + "gate", self.a.n_inner)
        activated = ops.silu(self.tape, gate)
        del gate
        up = self.linear(x, at + "up", self.a.n_inner)
        product = ops.multiply(self.tape, activated, up)
        del activated, up
        return self.linear(product, at + "down", self.a.n_embd)

    def _gpt2(self, tokens: Value, targets: Value) -> Value:
        hidden = self._gpt2_model(tokens)
        self.tape.block = "head"
        logits = self.linear(hidden, "embedding" if self.a.tied else "head", self.a.vocab_size)
        return self._hugging_face_loss(logits, targets)

    def _gpt2_model(self, tokens: Value) -> Value:
        tape, w, plan = self.tape, self.weights, self.plan
        embedded = ops.embedding(tape, tokens, w["embedding"], self.a.n_embd)
        self._require_gradient(embedded)
        positions = tape.constant(plan.seq_len, INT64)
        position_embeds = ops.embedding(tape, positions, w["positions"], self.a.n_embd)
        hidden = ops.add(tape, embedded, position_embeds)
        mask = tape.constant(plan.batch * plan.seq_len**2, embedded.itemsize) if plan.attention == "eager" else None
        for i in range(self.a.n_layer):
            tape.block = f"block {i}"
            block = partial(self._gpt2_block, at=f"blocks.{i}.")
            hidden = self._block(block, hidden, mask) if mask is not None else self._block(block, hidden)
        return self._layer_norm(hidden, "norm")

    def _gpt2_block(self, hidden: Value, mask: Value | None = None, *, at: str) -> Value:
        residual = hidden
        hidden = self._layer_norm(hidden, at + "attn_norm")
        attended, _scores = self._gpt2_attention(hidden, at, mask)
        hidden = ops.add(self.tape, attended, residual)
        residual = hidden
        hidden = self._layer_norm(hidden, at + "mlp_norm")
        fed = self._gpt2_mlp(hidden, at)
        return ops.add(self.tape, residual, fed)

    def _gpt2_attention(self, hidden: Value, at: str, mask: Value | None) -> tuple:
        q, k, v = ops.split(self.tape, self.linear(hidden, at + "qkv", 3 * self.a.n_embd), 3)
        if self.plan.use_cache:
            k, v = self._cache(k, v)
        y, weights = self._attend(q, k, v, mask)
        return self.linear(y, at + "o", self.a.n_embd), weights

    def _gpt2_mlp(self, hidden: Value, at: str) -> Value:
        hidden = self.linear(hidden, at + "up", self.a.n_inner)
        hidden = self._gelu_new(hidden) if self.a.gelu == "python" else ops.gelu(self.tape, hidden)
        return self.linear(hidden, at + "down", self.a.n_embd)

    def _gelu_new(self, x: Value) -> Value:
        """0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), each step a tensor of its own."""
        tape = self.tape
        half = ops.scale(tape, x)
        bent = ops.scale(tape, ops.add(tape, x, ops.scale(tape, ops.power(tape, x))))
        bent = ops.tanh(tape, bent)
        bent = ops.shift(tape, bent)
        return ops.multiply(tape, half, bent)

    # ------------------------------------------------------------ shared parts

    def _block(self, run, *inputs: Value) -> Value:
        """One block, checkpointed if the plan says so. run's other arguments live as long as run does."""
        if self.plan.checkpointing == "none":
            return run(*inputs)
        return checkpoint(self.tape, run, inputs, after=self.linear.cached_casts.clear)

    def _require_gradient(self, embedded: Value) -> None:
        """transformers' enable_input_require_grads, which checkpointing turns on: the embeddings take a gradient."""
        if self.plan.checkpointing != "none" and embedded.source is None:
            embedded.source = Leaf(embedded.nbytes, TEMPORARY)
            self.embedded = embedded

    def _embed(self, tokens: Value, positions: Value, table: str) -> Value:
        tape, w, C = self.tape, self.weights, self.a.n_embd
        return ops.add(
            tape, ops.embedding(tape, tokens, w["embedding"], C), ops.embedding(tape, positions, w[table], C)
        )

    def _layer_norm(self, x: Value, name: str) -> Value:
        return ops.layer_norm(self.tape, x, self.weights[name], self.rows, self.weights[name + ".bias"])

    def _rms_norm(self, x: Value, name: str, rows: int) -> Value:
        """weight * (x32 / sqrt(mean(x32**2) + eps)).to(x's dtype), with x32 a float32 copy of x."""
        tape, itemsize = self.tape, x.itemsize
        hidden = ops.cast(tape, x, 4)
        variance = ops.mean_of_last(tape, ops.power(tape, hidden), rows)
        hidden = ops.multiply(tape, hidden, ops.rsqrt(tape, ops.shift(tape, variance)))
        return ops.multiply(tape, self.weights[name], ops.cast(tape, hidden, itemsize))

    def _sdpa(self, q: Value, k: Value, v: Value) -> Value:
        q, k, v = (self._product(value) for value in (q, k, v))
        return ops.attention(self.tape, q, k, v, self.rows * self.a.n_head)

    def _attend(self, q: Value, k: Value, v: Value, mask: Value | None) -> tuple[Value, Value | None]:
        """Attention as the plan has it: its output, and the weights where they are a tensor."""
        return (self._sdpa(q, k, v), None) if self.plan.attention == "sdpa" else self._eager(q, k, v, mask)

    def _eager(self, q: Value, k: Value, v: Value, mask: Value) -> tuple[Value, Value]:
        """transformers' eager attention; grouped keys and values are repeated to every query head first."""
        tape = self.tape
        keys, values = self._repeat(k), self._repeat(v)
        weights = ops.scale(tape, self._scores(q, keys))
        weights = ops.add(tape, weights, mask)
        if self.a.family == "gpt2":
            weights = ops.softmax(tape, weights)
            weights = ops.cast(tape, weights, v.itemsize)
        else:  # softmax and cast are one expression there: the masked scores are bound until both are done
            half = self.plan.regime.half == "float16"
            weights = ops.cast(tape, ops.softmax_in_float32(tape, weights, half), q.itemsize)
        y = self._weigh(weights, values)
        return (ops.copy(tape, y, gradient_copied=self.batch_moves) if self.heads_move else y), weights

    def _repeat(self, x: Value) -> Value:
        groups = self.a.n_head // self.a.n_kv_head
        if groups == 1:
            return x
        return ops.expand(self.tape, x, groups) if self.a.n_kv_head == 1 else ops.repeat(self.tape, x, groups)

    def _in_order(self, x: Value, seen_as_many: bool) -> Value:
        """Keys or values as a batched product takes them: copied if heads are interleaved, or are one seen as many."""
        if self.pairs_move or seen_as_many:
            return ops.copy(self.tape, x, gradient_copied=self.pairs_move)
        return x

    def _scores(self, q: Value, k: Value) -> Value:
        """q @ k^T: B * H * T * T elements. The factors are copied if their heads are interleaved."""
        tape, a, plan = self.tape, self.a, self.plan
        seen_as_many = self.one_for_all and not self._casts(k)
        q, k = self._product(q), self._product(k)
        q = ops.copy(tape, q) if self.batch_moves else q
        k = self._in_order(k, seen_as_many)
        return ops.matmul(tape, q, k, plan.batch * a.n_head * plan.seq_len**2)

    def _weigh(self, weights: Value, v: Value) -> Value:
        """weights @ v: B * H * T * D elements."""
        tape, a = self.tape, self.a
        seen_as_many = self.one_for_all and not self._casts(v)
        weights, v = self._product(weights), self._product(v)
        v = self._in_order(v, seen_as_many)
        return ops.matmul(tape, weights, v, self.rows * a.n_head * a.head_dim)

    def _casts(self, x: Value) -> bool:
        return self.plan.regime.autocast is not None and x.itemsize != self.compute

    def _product(self, x: Value) -> Value:
        """x as a matrix product takes it: in 16 bits under autocast."""
        return ops.cast(self.tape, x, self.compute) if self._casts(x) else x

    def _cache(self, k: Value, v: Value) -> tuple[Value, Value]:
        """transformers' DynamicCache: copies of the keys and values, in the keys' precision, kept as outputs."""
        v = ops.cast(self.tape, v, k.itemsize)
        k, v = (ops.copy(self.tape, x, gradient_copied=False) for x in (k, v))
        self.outputs += [k, v]
        if self.a.family == "mistral":  # its sliding window counts the tokens of each layer
            self.outputs.append(self.tape.constant(1, INT64))
        return k, v

    def _upcast(self, logits: Value) -> Value:
        """In float32 if the plan says so; autocast does it by itself."""
        return ops.cast(self.tape, logits, 4) if self.plan.upcast or self.plan.regime.autocast else logits

    def _hugging_face_loss(self, logits: Value, targets: Value) -> Value:
        tape, plan = self.tape, self.plan
        if plan.holds == "outputs":
            self.outputs.append(logits)
        upcast = self._upcast(logits)
        padded = tape.constant(plan.batch * (plan.seq_len + 1), INT64)
        shifted = padded if plan.batch == 1 else tape.constant(plan.tokens, INT64)  # one row needs no copy
        loss = ops.cross_entropy(tape, upcast, shifted)
        if plan.holds == "loss":
            self.outputs.clear()  # only now: the cache lives until the model's forward returns
        del padded
        return loss
