"""Adapters against peft on the same model: outputs, gradients, training, merging, files and counts."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from minigpt import lora
from minigpt.data import random_windows
from minigpt.lora import KINDS, LoRALinear
from minigpt.memory.families import KNOWN, Architecture
from minigpt.memory.measured.step import measure_module
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, train

CONFIG = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=32)
SIX = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
SEVEN = [*SIX, "gate_proj"]
TEXT = torch.randint(1, 256, (400,), generator=torch.Generator().manual_seed(0))
BATCHES = random_windows(TEXT, 2, 16)
CLOSE = dict(rtol=1e-6, atol=1e-6)


def tiny() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def biased() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8))


def peft_of(base: nn.Module, kind: str, targets, dropout: float = 0.0, autocast_adapter_dtype: bool = True):
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, lora_dropout=dropout, use_rslora=kind == "rslora",
        use_dora=kind == "dora",
    )  # fmt: skip
    return get_peft_model(copy.deepcopy(base), config, autocast_adapter_dtype=autocast_adapter_dtype)


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Our adapters by their names in peft's files."""
    return lora._parameters(lora._adapters(model))


def pair(kind: str, base: nn.Module | None = None, targets=SIX, dropout: float = 0.0, moved: bool = True):
    """The same base with our adapters and with peft's, which have the same values; ``moved``: away from the start."""
    base = tiny() if base is None else base
    theirs = peft_of(base, kind, targets, dropout)
    ours = copy.deepcopy(base)
    lora.inject(ours, 4, 8, targets, kind, dropout=dropout)
    state = get_peft_model_state_dict(theirs)
    assert state.keys() == parameters(ours).keys()
    if moved:
        torch.manual_seed(1)
        state = {key: value + 0.1 * torch.rand_like(value) for key, value in state.items()}
        set_peft_model_state_dict(theirs, state)
    for key, parameter in parameters(ours).items():
        assert parameter.dtype == state[key].dtype
        parameter.data.copy_(state[key])
    return ours, theirs


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of a peft model, by the names in its files."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for p in trained.values():
        p.data = p.grad
    return get_peft_model_state_dict(model)


def frozen(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


def assert_frozen_unchanged(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = frozen(model)
    assert before and after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_peft(kind):
    ours, theirs = pair(kind)
    tokens, targets = BATCHES[0]
    torch.testing.assert_close(ours(tokens), theirs(tokens), **CLOSE)
    assert not torch.allclose(ours(tokens), tiny()(tokens), atol=1e-3)  # the adapters did something
    ours(tokens, targets).backward()
    theirs(tokens, targets).backward()
    expected = gradients(theirs)
    for key, p in parameters(ours).items():
        assert p.grad.abs().max() > 0
        torch.testing.assert_close(p.grad, expected[key], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["fp32", "dropout", "bf16 base", "autocast"])
def test_layers_with_a_bias_equal_peft(kind, case):
    base = biased().to(torch.bfloat16 if case == "bf16 base" else torch.float32)
    ours, theirs = pair(kind, base, ["0", "2"], dropout=0.3 if case == "dropout" else 0.0)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(2)).to(base[0].weight.dtype)
    outputs = []
    for model in (ours, theirs):
        torch.manual_seed(3)  # of the dropout
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            outputs.append(model.train()(x))
        outputs[-1].float().square().sum().backward()
    assert outputs[0].dtype == outputs[1].dtype
    torch.testing.assert_close(*outputs, **CLOSE)
    expected = gradients(theirs)
    for key, p in parameters(ours).items():
        torch.testing.assert_close(p.grad, expected[key], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_of_adamw_equal_peft_and_leave_the_base_alone(kind):
    ours, theirs = pair(kind, moved=False)
    before = frozen(ours)
    start = {key: p.detach().clone() for key, p in parameters(ours).items()}
    losses = {}
    for model in (ours, theirs):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
        losses[model] = []
        for step in range(10):
            loss = model(*BATCHES[step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[model].append(loss.item())
    assert losses[ours] == pytest.approx(losses[theirs], abs=1e-6)
    assert losses[ours][0] != losses[ours][9]
    expected = get_peft_model_state_dict(theirs)
    for key, p in parameters(ours).items():
        torch.testing.assert_close(p, expected[key], **CLOSE)
        assert not torch.equal(p, start[key])
    assert_frozen_unchanged(ours, before)


def test_the_loop_trains_an_injected_model_and_resumes_it(tmp_path):
    plan = TrainPlan(steps=6, lr=1e-2, weight_decay=0.5, checkpoint_every=2, seed=7)

    def injected(seed: int = 0) -> GPT:
        model = tiny()
        lora.inject(model, 4, 8, SIX, "dora", dropout=0.1, generator=torch.Generator().manual_seed(seed))
        return model

    class Stopped(Exception):
        pass

    def stop(done, _):
        if done == 5:
            raise Stopped

    unbroken, path = injected(), tmp_path / "run.pt"
    before = frozen(unbroken)
    expected = train(unbroken, BATCHES, plan, progress=False)
    assert_frozen_unchanged(unbroken, before)
    with pytest.raises(Stopped):
        train(injected(), BATCHES, plan, progress=False, checkpoint=path, on_step=stop)
    resumed = injected(seed=1)
    history = train(resumed, BATCHES, plan, progress=False, checkpoint=path, resume=True)
    assert history.losses == expected.losses and len(history.losses) == 6
    for one, other in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lora", "rslora"])  # for DoRA, peft also has an identity matrix for a moment
def test_a_step_takes_the_bytes_that_peft_takes(kind, dtype):
    ours, theirs = pair(kind, tiny().to(dtype))
    plan = TrainingPlan(batch=2, seq_len=16)
    one, other = measure_module(ours, plan), measure_module(theirs.base_model.model, plan)
    for name in ("ledger", "peak", "peak_at", "frozen"):
        assert getattr(one, name) == getattr(other, name), name


def test_float32_adapters_train_on_a_16_bit_base():
    model = tiny().to(torch.bfloat16)
    lora.inject(model, 4, 8)
    before = frozen(model)
    train(model, BATCHES, TrainPlan(steps=2), progress=False)
    assert {p.dtype for p in parameters(model).values()} == {torch.float32}
    assert_frozen_unchanged(model, before)


@pytest.mark.parametrize("asked", [torch.float32, None])
def test_the_type_of_adapters_is_that_of_peft(asked):
    base = tiny().to(torch.bfloat16)
    theirs = get_peft_model_state_dict(peft_of(base, "dora", SIX, autocast_adapter_dtype=asked is not None))
    lora.inject(base, 4, 8, SIX, "dora", adapter_dtype=asked)
    for key, p in parameters(base).items():
        assert p.dtype == theirs[key].dtype == (asked or torch.bfloat16)
        if "magnitude" in key:
            assert torch.equal(p, theirs[key])


def test_the_start_is_a_linear_layers_own_and_changes_nothing():
    tokens = BATCHES[0][0]
    for kind in KINDS:
        layer = LoRALinear(nn.Linear(64, 48), 4, kind=kind, generator=torch.Generator().manual_seed(5))
        torch.manual_seed(5)
        assert torch.equal(layer.lora_A, nn.Linear(64, 4, bias=False).weight)  # kaiming-uniform, a = sqrt(5)
        assert not layer.lora_B.any()
        assert {name for name, p in layer.named_parameters() if not p.requires_grad} == {"base.weight", "base.bias"}
        model = tiny().eval()
        expected = model(tokens)
        lora.inject(model, 4, 8, "all-linear", kind, dropout=0.5)
        assert not any(module.training for module in model.modules())
        torch.testing.assert_close(model(tokens), expected, **CLOSE)
    assert LoRALinear(nn.Linear(8, 8), 4, 16).scaling == 4
    assert LoRALinear(nn.Linear(8, 8), 4, 16, "rslora").scaling == 8


@pytest.mark.parametrize(("dtype", "logits_rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_equal_peft_and_unmerging_returns_them(kind, dtype, logits_rounding):
    ours, theirs = pair(kind, tiny().to(dtype))
    tokens, targets = BATCHES[0]
    step = torch.finfo(dtype).eps
    weights = frozen(ours)
    apart, plain = ours(tokens), tiny().to(dtype)(tokens)
    assert (apart - plain).norm() > 0.2 * plain.norm()
    lora.merge(ours)
    merged = frozen(ours)
    theirs.merge_adapter()
    for name, module in ours.named_modules():
        if isinstance(module, LoRALinear):
            expected = theirs.get_submodule(f"base_model.model.{name}.base_layer").weight
            torch.testing.assert_close(module.base.weight, expected, rtol=step, atol=1e-6)
            assert not torch.equal(expected, weights[f"{name}.base.weight"])
    assert (ours(tokens) - apart).norm() < logits_rounding * apart.norm()
    with pytest.raises(ValueError, match="no parameter with requires_grad"):
        train(ours, BATCHES, TrainPlan(steps=1), progress=False)
    lora.unmerge(ours)
    after = frozen(ours)
    assert after.keys() == weights.keys()
    for name, weight in weights.items():
        rounding = 2 * step * merged[name].abs().max().item()  # at the size of W', not at that of W
        torch.testing.assert_close(after[name], weight, rtol=0, atol=rounding)
    assert (ours(tokens) - apart).norm() < logits_rounding * apart.norm()
    ours(tokens, targets).backward()
    assert all(p.grad is not None for p in parameters(ours).values())


def test_merging_twice_or_unmerging_what_is_not_merged_is_refused():
    model = tiny()
    with pytest.raises(ValueError, match="model has no adapters; it must be one that inject"):
        lora.merge(model)
    names = lora.inject(model, 4)
    with pytest.raises(ValueError, match=f"the adapter of {names[0]} is not merged"):
        lora.unmerge(model)
    lora.merge(model)
    before = frozen(model)
    with pytest.raises(ValueError, match=f"the adapter of {names[0]} is merged already"):
        lora.merge(model)
    assert_frozen_unchanged(model, before)
    model.get_submodule(names[0]).unmerge()
    with pytest.raises(ValueError, match=f"the adapter of {names[1]} is merged already"):
        lora.merge(model)
    assert not model.get_submodule(names[0]).merged  # all or none
    with pytest.raises(ValueError, match="this layer is not merged"):
        model.get_submodule(names[0]).unmerge()


def test_all_linear_takes_the_blocks_and_never_the_tied_head():
    model = tiny()
    names = lora.inject(model, 4, targets="all-linear")
    assert names == [f"blocks.{i}.{part}" for i in range(2) for part in [
        "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "mlp.up_proj", "mlp.down_proj"]]  # fmt: skip
    for layer in lora._adapters(model).values():
        nn.init.normal_(layer.lora_B)
    before = model.token_embedding.weight.clone()
    lora.merge(model)
    assert torch.equal(model.token_embedding.weight, before) and model.lm_head.weight is model.token_embedding.weight

    both = "token_embedding.weight and lm_head.weight are one tensor, and merging would change both"
    with pytest.raises(ValueError, match=f"targets has 'lm_head', but lm_head is tied: {both}; allowed: 'all-linear'"):
        lora.inject(tiny(), 4, targets=["q_proj", "lm_head"])
    untied = tiny()
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    assert lora.inject(untied, 4, targets=["lm_head"]) == ["lm_head"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rank=0), r"rank is 0; it must be an integer from 1 to 32 for blocks.0.attn.q_proj, which is 32 x 32"),
        (dict(rank=-1), "rank is -1"),
        (dict(rank=True), "rank is True"),
        (dict(rank=2.0), "rank is 2.0"),
        (dict(rank=33, targets=["down_proj"]), "rank is 33; .* from 1 to 32 for blocks.0.mlp.down_proj, .* 32 x 128"),
        (dict(alpha=0), "alpha is 0; it must be a number above 0"),
        (dict(alpha=math.nan), "alpha is nan"),
        (dict(alpha="16"), "alpha is '16'"),
        (dict(alpha=True), "alpha is True"),
        (dict(dropout=False), "dropout is False"),
        (dict(generator=5), "generator is 5; it must be a torch.Generator, or None"),
        (dict(kind="LoRA"), "kind is 'LoRA'; allowed: lora, rslora, dora"),
        (dict(dropout=1.0), "dropout is 1.0; it must be a number of at least 0 and below 1"),
        (dict(adapter_dtype=torch.int8), "adapter_dtype is torch.int8; it must be a floating-point"),
        (dict(targets="q_proj"), "targets is 'q_proj'; allowed: 'all-linear', or a list of q_proj, k_proj"),
        (dict(targets=[]), r"targets is \[\]"),
        (dict(targets=["q_proj", "query"]), "targets has 'query', but no layer has that name; .* q_proj, k_proj"),
        (dict(targets=["proj"]), "targets has 'proj', but no layer has that name"),
        (dict(targets=["attn"]), "targets has 'attn', but blocks.0.attn is not a linear layer .Attention.; allowed"),
        (dict(targets=["token_embedding"]), "token_embedding is not a linear layer .Embedding."),
    ],
)
def test_what_is_not_allowed_is_named_and_leaves_the_model_as_it_was(options, message):
    model = tiny()
    with pytest.raises(ValueError, match=message):
        lora.inject(model, **options)
    assert lora.trainable_parameters(model) == lora.trainable_parameters(tiny())
    assert not any(isinstance(module, LoRALinear) for module in model.modules())
    if options.keys() <= {"rank", "targets", "kind"}:
        with pytest.raises(ValueError, match="rank is|targets|kind is"):
            lora.adapter_parameters(CONFIG, **options)


def test_a_model_takes_adapters_once():
    model = tiny()
    lora.inject(model, 4, targets=["q_proj"])
    with pytest.raises(ValueError, match="model has an adapter at blocks.0.attn.q_proj already"):
        lora.inject(model, 4, targets=["v_proj"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_adapters_comes_back_here_and_in_peft(kind, tmp_path):
    ours, _ = pair(kind)
    tokens, path = BATCHES[0][0], tmp_path / "new folder" / "adapter.safetensors"
    lora.save(ours, path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    fresh, fresh_peft = tiny(), peft_of(tiny(), kind, SIX)
    assert lora.load(fresh, path) == list(lora._adapters(ours))
    assert torch.equal(fresh(tokens), ours(tokens))
    assert repr(fresh) == repr(ours) and lora.trainable_parameters(fresh) == lora.trainable_parameters(ours)
    assert set_peft_model_state_dict(fresh_peft, load_file(path)).unexpected_keys == []
    torch.testing.assert_close(fresh_peft(tokens), ours(tokens), **CLOSE)


def test_a_file_keeps_the_settings_and_the_type(tmp_path):
    model = tiny()
    lora.inject(model, 3, 5, ["up_proj"], "rslora", dropout=0.25, adapter_dtype=torch.bfloat16)
    lora.save(model, tmp_path / "a")
    fresh = tiny()
    lora.load(fresh, tmp_path / "a")
    for layer in lora._adapters(fresh).values():
        assert (layer.rank, layer.alpha, layer.kind, layer.dropout) == (3, 5, "rslora", 0.25)
        assert layer.scaling == 5 / math.sqrt(3) and layer.lora_A.dtype == torch.bfloat16


def test_a_file_that_does_not_fit_is_refused_and_leaves_the_model_as_it_was(tmp_path):
    model, other = tiny(), GPT(GPTConfig(n_layer=2, n_embd=64, n_head=2))
    lora.inject(other, 4)
    lora.save(other, tmp_path / "wide")
    (tmp_path / "text").write_text("not tensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    for name, message in {
        "nowhere": "nowhere', which cannot be read", "text": "text', which cannot be read",
        "plain": "which has no adapter settings in its header",
        "wide": r"q_proj.lora_A.weight is \(4, 64\), the model needs \(4, 32\)",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            lora.load(model, tmp_path / name)
    assert lora.trainable_parameters(model) == sum(p.numel() for p in model.parameters())
    with pytest.raises(ValueError, match="model has an adapter at blocks.0.attn.q_proj already"):
        lora.load(other, tmp_path / "wide")
    with pytest.raises(ValueError, match="model has no adapters"):
        lora.save(model, tmp_path / "wide")
    other.blocks[0].attn.q_proj = LoRALinear(nn.Linear(64, 64), 2)
    with pytest.raises(ValueError, match="adapters that differ in rank"):
        lora.save(other, tmp_path / "wide")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, header: tensors.update(extra=torch.zeros(1)), "the model has no place for extra"),
        (lambda tensors, header: next(iter(tensors.values())).fill_(math.nan), "weight holds NaN or infinity"),
        (lambda tensors, header: header.update(lora="[]"), "no adapter settings in its header"),
        (lambda tensors, header: header.update(lora="{"), "a', which cannot be read"),
        (lambda tensors, header: tensors.popitem(), "weight is None, the model needs"),
    ],
)
def test_a_changed_file_is_refused(change, message, tmp_path):
    model, fresh = tiny(), tiny()
    lora.inject(model, 4)
    lora.save(model, tmp_path / "a")
    with safe_open(tmp_path / "a", "pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    change(tensors, header)
    save_file(tensors, tmp_path / "a", header)
    with pytest.raises(ValueError, match=message):
        lora.load(fresh, tmp_path / "a")
    assert lora.trainable_parameters(fresh) == sum(p.numel() for p in fresh.parameters())


def test_a_file_for_another_depth_is_refused(tmp_path):
    shallow, deep = (GPT(GPTConfig(n_layer=n, n_embd=32, n_head=2)) for n in (1, 3))
    lora.inject(shallow, 4)
    lora.save(shallow, tmp_path / "a")
    with pytest.raises(ValueError, match="made for a model of 7 linear layers; this model has 19"):
        lora.load(deep, tmp_path / "a")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    model = tiny()
    lora.inject(model, 4)
    lora.save(model, tmp_path / "a")
    before = (tmp_path / "a").read_bytes()

    def full(tensors, path, header):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(lora, "save_file", full)
    with pytest.raises(OSError, match="no space left"):
        lora.save(model, tmp_path / "a")
    assert [file.name for file in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == before


class Packed(nn.Module):
    """A linear layer that keeps its weight in another form, as a quantized one does."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("eighths", (weight * 8).round().to(torch.int8))

    def dequantize(self) -> torch.Tensor:
        return self.eighths / 8

    def requantize(self, weight: torch.Tensor) -> None:
        self.eighths = (weight * 8).round().to(torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.dequantize())


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_may_keep_its_weight_in_another_form(kind):
    packed = nn.Sequential(Packed(torch.randn(24, 16)))
    plain = nn.Sequential(nn.Linear(16, 24, bias=False))
    plain[0].weight.data = packed[0].dequantize()
    x = torch.randn(5, 16)
    results = []
    for model in (plain, packed):
        lora.inject(model, 4, 8, "all-linear", kind, generator=torch.Generator().manual_seed(0))
        nn.init.constant_(model[0].lora_B, 0.1)
        y = model(x)
        y.sum().backward()
        results.append([y.detach(), *(p.grad for p in parameters(model).values())])
        lora.merge(model)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(packed[0].base.dequantize(), (plain[0].base.weight * 8).round() / 8)


PUBLISHED = [  # of the adapters' parameters
    ("llama-7b", 8, SEVEN, 19_988_480),
    ("llama-7b", 8, ["q_proj", "v_proj"], 4_194_304),
    ("llama-13b", 16, SEVEN, 62_586_880),
    ("llama-3-8b", 8, SEVEN, 20_971_520),
    ("qwen3-8b", 8, SEVEN, 21_823_488),
]


@pytest.mark.parametrize(("name", "rank", "targets", "published"), PUBLISHED)
def test_adapter_parameters_equal_the_published_counts_peft_and_ours(name, rank, targets, published):
    assert lora.adapter_parameters(name, rank, targets) == published
    if targets is SEVEN:
        assert lora.adapter_parameters(name, rank, "all-linear") == published
    n_layer = Architecture.of(name).n_layer
    with torch.device("meta"):  # one block of the real model, without its bytes
        one_block = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**KNOWN[name], "num_hidden_layers": 1}))
        theirs = get_peft_model(copy.deepcopy(one_block), LoraConfig(r=rank, target_modules=targets, use_dora=False))
    assert n_layer * theirs.get_nb_trainable_parameters()[0] == published
    lora.inject(one_block, rank, targets="all-linear" if targets is SEVEN else targets, kind="dora")
    count = n_layer * lora.trainable_parameters(one_block)
    assert count == lora.adapter_parameters(name, rank, targets, "dora") > published


def test_adapter_parameters_of_minigpt_small():
    config = GPTConfig.preset("small")
    with torch.device("meta"):
        model = GPT(config)
    assert len(lora.inject(model, 8, targets=SIX)) == 72
    assert lora.trainable_parameters(model) == lora.adapter_parameters(config, 8, "all-linear") == 1_327_104
    assert lora.adapter_parameters(config, 8, SIX) == 1_327_104
    with pytest.raises(ValueError, match="targets has 'gate_proj', but no layer has that name; .* a list of q_proj"):
        lora.adapter_parameters(config, 8, ["gate_proj"])
