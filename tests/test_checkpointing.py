"""Checkpointing policies: the same loss and gradients, bit for bit, with less kept."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from minigpt import lora
from minigpt.checkpointing import KEPT, POLICIES, blocks_of, checkpoint_blocks, keep_products
from minigpt.memory.segments import segments
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, train

LAYERS, WORDS = 5, 61
TOKENS = torch.randint(0, WORDS, (2, 12), generator=torch.Generator().manual_seed(0))


def minigpt(attention="sdpa"):
    torch.manual_seed(0)
    return GPT(GPTConfig(n_layer=LAYERS, n_embd=32, n_head=2, context=32, vocab_size=WORDS, attention=attention))


def with_dropout(model):
    for block in model.blocks:
        block.mlp = nn.Sequential(nn.Dropout(0.3), block.mlp, nn.Dropout(0.2))
    return model


def llama(attention="sdpa", dropout=0.0, **changes):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=WORDS, attention_dropout=dropout, attn_implementation=attention, **changes
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


def adapted():
    model = minigpt()
    lora.inject(model, 4, 8, ["q_proj", "down_proj"])
    return model


MODELS = {
    "minigpt": minigpt,
    "minigpt, eager": lambda: minigpt("eager"),
    "minigpt, dropout": lambda: with_dropout(minigpt()),
    "minigpt, adapters": adapted,
    "llama": llama,
    "llama, eager": lambda: llama("eager"),
    "llama, dropout": lambda: llama(dropout=0.4),
    "llama, eager, dropout": lambda: llama("eager", dropout=0.4),
}


def step(model, autocast=False):
    """The loss, every gradient, and a number drawn after them: the random state must be left alike too."""
    torch.manual_seed(1)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(TOKENS, TOKENS) if isinstance(model, GPT) else model(input_ids=TOKENS, labels=TOKENS).loss
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return loss.detach(), gradients, torch.rand(1)


def assert_same(one, other):
    (loss, gradients, drawn), (loss_, gradients_, drawn_) = one, other
    assert torch.equal(loss, loss_) and torch.equal(drawn, drawn_)
    assert gradients.keys() == gradients_.keys()
    assert all(torch.equal(gradients[name], gradients_[name]) for name in gradients)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_policy_gives_the_same_loss_gradients_and_random_state(name, autocast):
    model = MODELS[name]()
    plain = step(model, autocast)
    for policy in POLICIES:
        if name == "minigpt, adapters" and policy == "reentrant":
            continue  # which trains nothing: below
        checkpoint_blocks(model, policy, every_n_layers=3)
        assert_same(step(model, autocast), plain)
    checkpoint_blocks(model, "none")
    assert not any("forward" in vars(block) for block in blocks_of(model))
    assert_same(step(model, autocast), plain)


class Saved:
    """How many bytes autograd saves through hooks that are outside of a checkpoint's own."""

    def __init__(self):
        self.storages = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x)

    def pack(self, x):
        self.storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x


def kept_by(model, policy):
    checkpoint_blocks(model, policy, every_n_layers=2)
    saved = Saved()
    with saved.hooks:
        loss = model(TOKENS, TOKENS)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    total = sum(nbytes for address, nbytes in saved.storages.items() if address not in weights)
    del loss
    return total


def test_what_is_kept_is_an_input_of_each_segment():
    """A block's input is (2, 12, 32) of float32: 3,072 bytes."""
    model, stream = minigpt(), TOKENS.numel() * 32 * 4
    kept = {policy: kept_by(model, policy) for policy in ("none", "full", "every", "sqrt", "offload")}
    assert kept["full"] - kept["sqrt"] == (LAYERS - 3) * stream  # isqrt(5) = 2: segments of 2, 2, 1
    assert kept["full"] - kept["offload"] == LAYERS * stream  # they go to other hooks
    per_block = (kept["none"] - kept["full"]) / LAYERS
    assert kept["every"] == kept["full"] + 2 * per_block  # of 5 blocks, 0, 2 and 4 are checkpointed


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.kept = self.others = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.kept += func.name() in KEPT
        self.others += func.name() not in KEPT
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("build", [minigpt, llama])
def test_selective_runs_no_product_and_no_attention_again(build):
    model, counts = build(), {}
    for policy in ("none", "full", "selective"):
        checkpoint_blocks(model, policy)
        with Counted() as counts[policy]:
            step(model)
    assert counts["selective"].kept == counts["none"].kept < counts["full"].kept
    assert counts["selective"].others > counts["none"].others


def test_attention_that_drops_is_run_again():
    """Else what is dropped after it would be drawn from another state."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention.default
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
    product = torch.ops.aten.mm.default
    kept = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
    assert keep_products(None, product, 1, 2) == keep_products(None, attend, 1, 2, 3) == kept
    assert keep_products(None, attend, 1, 2, 3, 0.0) == kept != keep_products(None, attend, 1, 2, 3, 0.1)
    assert keep_products(None, efficient, 1, 2, 3, None, True) == kept
    assert keep_products(None, efficient, 1, 2, 3, None, True, 0.1) != kept
    assert keep_products(None, attend, 1, 2, 3, dropout_p=0.1) != kept


def test_segments_cover_what_they_should():
    assert segments("none", 5) == []
    assert segments("full", 3) == segments("selective", 3) == [range(0, 1), range(1, 2), range(2, 3)]
    assert segments("every", 7, 3) == [range(0, 1), range(3, 4), range(6, 7)]
    assert segments("sqrt", 12) == [range(0, 3), range(3, 6), range(6, 9), range(9, 12)]
    assert segments("sqrt", 5) == [range(0, 2), range(2, 4), range(4, 5)]


def test_every_is_the_choice_of_transformers():
    model = llama()
    model.gradient_checkpointing_enable(every_n_layers=3)
    theirs = [i for i, block in enumerate(blocks_of(model)) if block.gradient_checkpointing]
    assert theirs == [i for segment in segments("every", LAYERS, 3) for i in segment]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_over_a_frozen_embedding_trains_nothing_and_train_says_so():
    model = adapted()
    checkpoint_blocks(model, "reentrant")
    assert not model(TOKENS, TOKENS).requires_grad
    with pytest.raises(ValueError, match="20 of 20 trained parameters get no gradient: .*use_reentrant=True"):
        train(model, [(TOKENS, TOKENS)], TrainPlan(steps=1), progress=False)
    checkpoint_blocks(model, "full")
    assert train(model, [(TOKENS, TOKENS)], TrainPlan(steps=1), progress=False).losses
    model.token_embedding.requires_grad_(True)
    checkpoint_blocks(model, "reentrant")
    assert train(model, [(TOKENS, TOKENS)], TrainPlan(steps=1), progress=False).losses


def test_without_gradients_blocks_simply_run_and_caches_work():
    model = llama().eval()
    prompt = TOKENS[:1, :4]
    plain = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
    checkpoint_blocks(model, "full")
    assert torch.equal(model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0), plain)


def test_what_a_block_had_before_comes_back():
    model = minigpt()
    own = model.blocks[1].forward
    model.blocks[1].forward = lambda x: own(x)
    before = model.blocks[1].forward
    checkpoint_blocks(model, "sqrt")
    checkpoint_blocks(model, "offload")
    checkpoint_blocks(model, "none")
    assert model.blocks[1].forward is before and "forward" not in vars(model.blocks[0])


def test_what_is_not_allowed_is_named():
    model = minigpt()
    with pytest.raises(ValueError, match="policy is 'half'; allowed: none, full, reentrant, every"):
        checkpoint_blocks(model, "half")
    with pytest.raises(ValueError, match="every_n_layers is 0; it must be an integer of at least 1"):
        checkpoint_blocks(model, "every", every_n_layers=0)
    with pytest.raises(ValueError, match="model is a Linear, which has 0 lists of blocks; it must have one"):
        checkpoint_blocks(nn.Linear(2, 2), "full")
    mixed = llama()
    mixed.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="policy is 'sqrt'; blocks of one kind can run in a row"):
        checkpoint_blocks(mixed, "sqrt")
    two = minigpt()
    two.blocks[0].forward = lambda x: (x,)
    checkpoint_blocks(two, "sqrt")
    with pytest.raises(ValueError, match="a block must return a tensor, and this returns a tuple"):
        two(TOKENS)
