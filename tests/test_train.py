"""The loop against torch's own optimizer, scheduler and a big batch; and resume against a run without a break."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minigpt.data import Example, pair_batches, random_windows, windows_in_order
from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPT, IGNORE, GPTConfig
from minigpt.precision import weight_dtype
from minigpt.resume import load_checkpoint, save_checkpoint
from minigpt.train import History, TrainPlan, bits_per_byte, evaluate, train

CONFIG = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=32)
TEXT = torch.randint(1, 256, (500,), generator=torch.Generator().manual_seed(0))


def tiny() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def run(model: nn.Module, batches, plan: TrainPlan, **options):
    return train(model, batches, plan, progress=False, **options)


def unequal_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Four rows with 1, 2, 30 and 9 targets."""
    tokens, targets = random_windows(TEXT, 4, 32)[0]
    for row, kept in enumerate((1, 2, 30, 9)):
        targets[row, kept:] = IGNORE
    return tokens, targets


def assert_same_weights(one: nn.Module, other: nn.Module, **tolerance) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, **tolerance)


def test_accumulation_equals_the_big_batch_when_answers_differ_in_length():
    tokens, targets = unequal_batch()
    rows = [(tokens[i : i + 1], targets[i : i + 1]) for i in range(4)]
    plan = dict(steps=1, lr=0.1, schedule="constant", clip=None)
    models = tiny(), tiny()
    sgd = [torch.optim.SGD(model.parameters()) for model in models]  # AdamW would hide a wrong scale
    whole = run(models[0], [(tokens, targets)], TrainPlan(**plan), optimizer=sgd[0])
    parts = run(models[1], rows, TrainPlan(**plan, accumulation=4), optimizer=sgd[1])
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    assert_same_weights(*models, rtol=1e-5, atol=1e-7)

    mean_of_means = sum(tiny()(*row).item() for row in rows) / 4  # the known mistake, which this data must show
    assert abs(mean_of_means - whole.losses[0]) > 1e-4


def test_the_loop_equals_a_plain_pytorch_loop():
    batches = random_windows(TEXT, 2, 32)
    model, reference = tiny(), tiny()
    history = run(model, batches, TrainPlan(steps=5, lr=1e-2, schedule="constant", clip=0.5, weight_decay=0.1))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(5):
        tokens, targets = batches[step]
        loss = F.cross_entropy(reference(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        assert history.losses[step] == pytest.approx(loss.item(), rel=1e-6)
        assert history.gradient_norms[step] == pytest.approx(norm.item(), rel=1e-5)
        assert norm > 0.5  # so that clipping did something
    assert_same_weights(model, reference)
    assert history.tokens == 5 * 2 * 32 and history.tokens_per_second > 0


def test_each_micro_batch_is_taken_once_and_in_order():
    class Counted:
        taken: list[int] = []

        def __getitem__(self, i):
            self.taken.append(i)
            return random_windows(TEXT, 1, 8)[i]

    run(tiny(), Counted(), TrainPlan(steps=3, accumulation=2))
    assert Counted.taken == [0, 1, 2, 3, 4, 5]


def test_a_checkpoint_keeps_the_loss_scale(tmp_path):
    plan, model = TrainPlan(steps=1, precision="fp16-autocast"), tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    halved, fresh = torch.amp.GradScaler("cpu", init_scale=4.0), torch.amp.GradScaler("cpu")
    save_checkpoint(tmp_path / "run.pt", model, optimizer, halved, plan, History())
    load_checkpoint(tmp_path / "run.pt", model, optimizer, fresh, plan)
    assert fresh.get_scale() == 4.0


def test_the_cosine_is_that_of_torch():
    plan = TrainPlan(steps=50, lr=3e-3, warmup=0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=3e-4)
    for step in range(50):
        assert plan.learning_rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        scheduler.step()


def test_the_warmup_is_that_of_torch():
    plan = TrainPlan(steps=20, lr=1.0, schedule="constant", warmup=4)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 5, total_iters=4)
    for step in range(20):
        assert plan.learning_rate(step) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_the_optimizer_follows_the_schedule():
    plan, seen = TrainPlan(steps=4, lr=1e-2, warmup=2), []
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters())
    history = run(
        model,
        random_windows(TEXT, 1, 8),
        plan,
        optimizer=optimizer,
        on_step=lambda done, _: seen.append(optimizer.param_groups[0]["lr"]),
    )
    assert seen == history.learning_rates == [plan.learning_rate(step) for step in range(4)]


class WithDropout(nn.Module):
    """MiniGPT with dropout on its tokens, so that a step draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = tiny()

    def forward(self, tokens, targets):
        kept = torch.rand(tokens.shape) < 0.9 if self.training else torch.ones_like(tokens, dtype=torch.bool)
        return self.gpt(tokens * kept, targets)


@pytest.mark.parametrize("precision", ["fp32", "fp16-autocast", "bf16-master"])
def test_a_resumed_run_gives_the_losses_of_one_without_a_break(tmp_path, precision):
    plan = TrainPlan(
        steps=6, lr=1e-2, warmup=2, accumulation=2, precision=precision, checkpoint_every=2, eval_every=3, seed=7
    )
    batches, held_out = random_windows(TEXT, 2, 16, seed=1), windows_in_order(TEXT, 2, 16, limit=2)
    dtype = weight_dtype(precision)
    unbroken = WithDropout().to(dtype)
    expected = run(unbroken, batches, plan, validation=held_out)

    class Stopped(Exception):
        pass

    def stop(done, _):
        if done == 5:
            raise Stopped

    path = tmp_path / "new folder" / "run.pt"
    with pytest.raises(Stopped):
        run(WithDropout().to(dtype), batches, plan, validation=held_out, checkpoint=path, on_step=stop)
    torch.manual_seed(99)
    resumed = WithDropout().to(dtype)
    nn.init.zeros_(resumed.gpt.norm.weight)  # what it starts from must not matter
    history = run(resumed, batches, plan, validation=held_out, checkpoint=path, resume=True)

    for name in ("losses", "learning_rates", "gradient_norms", "validation", "tokens"):
        assert getattr(history, name) == getattr(expected, name), name
    assert_same_weights(resumed, unbroken, rtol=0, atol=0)
    assert [done for done, _ in history.validation] == [0, 3, 6]
    assert [file.name for file in path.parent.iterdir()] == ["run.pt"]  # nothing half-written is left


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    run(tiny(), random_windows(TEXT, 1, 8), TrainPlan(steps=1), checkpoint=path)
    before = path.read_bytes()

    def no_space(state, file):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", no_space)
    with pytest.raises(OSError, match="No space left"):
        run(tiny(), random_windows(TEXT, 1, 8), TrainPlan(steps=1), checkpoint=path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_plain_fp16_is_refused():
    with pytest.raises(ValueError, match="precision is 'fp16'.*take fp16-autocast"):
        TrainPlan(steps=1, precision="fp16")


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "fp16"])
def test_every_precision_learns(precision):
    model = tiny().to(weight_dtype(precision))
    history = run(model, [random_windows(TEXT, 2, 32)[0]] * 12, TrainPlan(steps=12, lr=1e-2, precision=precision))
    assert history.losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert history.losses[-1] < history.losses[0] - 0.5


def test_fp16_gradients_are_scaled_and_clipped_unscaled():
    plan = dict(steps=1, lr=1e-2)
    batches = random_windows(TEXT, 2, 32)
    single = run(tiny(), batches, TrainPlan(**plan))
    half = run(tiny(), batches, TrainPlan(**plan, precision="fp16-autocast"))
    assert half.gradient_norms == pytest.approx(single.gradient_norms, rel=0.01)


def test_only_what_requires_a_gradient_is_trained():
    model = tiny().requires_grad_(False)
    model.blocks[1].attn.q_proj.requires_grad_(True)
    run(model, random_windows(TEXT, 2, 16), TrainPlan(steps=2, lr=1e-2))
    changed = [n for (n, p), q in zip(model.named_parameters(), tiny().parameters(), strict=True) if not p.equal(q)]
    assert changed == ["blocks.1.attn.q_proj.weight"]


def test_evaluation_is_the_mean_over_tokens_and_keeps_the_mode():
    model, batch = tiny(), unequal_batch()
    rows = [(batch[0][i : i + 1], batch[1][i : i + 1]) for i in range(4)]
    assert evaluate(model, rows) == pytest.approx(model(*batch).item(), rel=1e-6)
    assert model.training
    model.eval()
    evaluate(model, rows)
    assert not model.training


def test_tiny_numbers_are_zero_in_every_thread():
    code = "import minigpt.train, torch; print((torch.full((4_000_000,), 1e-39) * 0.9).count_nonzero().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_bits_per_byte_of_a_uniform_guess_is_eight():
    assert bits_per_byte(math.log(256)) == pytest.approx(8)


def test_pairs_are_learned_by_the_same_loop():
    pairs = [Example(f"def f{i}():", "ok") for i in range(4)]
    model = tiny()
    history = run(model, pair_batches(pairs, 4, 32), TrainPlan(steps=40, lr=1e-2))
    assert history.losses[-1] < 0.1
    start = torch.tensor([list(b"def f2():")])
    assert model.generate(start, 5, temperature=0, stop=0)[0, -3:].tolist() == [*b"ok", 0]


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(steps=0), "steps is 0; it must be an integer of at least 1"),
        (dict(steps=2.5), "steps is 2.5"),
        (dict(accumulation=0), "accumulation is 0"),
        (dict(lr=-1.0), "lr is -1.0; it must be a number of at least 0"),
        (dict(lr=math.nan), "lr is nan"),
        (dict(lr="4"), "lr is '4'"),
        (dict(lr=True), "lr is True"),
        (dict(weight_decay=True), "weight_decay is True"),
        (dict(clip=True), "clip is True"),
        (dict(seed=2**64), "seed is 18446744073709551616; it must be at most"),
        (dict(precision=[]), r"precision is \[\]"),
        (dict(clip=0.0), "clip is 0.0; it must be above 0, or None"),
        (dict(schedule="linear"), "schedule is 'linear'; allowed: cosine, constant"),
        (dict(warmup=9), "warmup is 9; it must be less than steps, which is 9"),
        (dict(precision="int8"), "precision is 'int8'; allowed: fp32, bf16"),
    ],
)
def test_a_bad_plan_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainPlan(**{"steps": 9, **changes})


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step():
    model, seen = tiny(), []

    def on_step(done, history):
        seen.append(done)
        if done == 2:
            nn.init.constant_(model.norm.weight, math.nan)

    with pytest.raises(ValueError, match="the loss is nan at step 3; a smaller lr"):
        run(model, random_windows(TEXT, 1, 8), TrainPlan(steps=5), on_step=on_step)
    assert seen == [1, 2]


@pytest.mark.parametrize("damage", ["empty", "junk", "truncated", "foreign", "other model", "other optimizer"])
def test_a_damaged_or_foreign_checkpoint_is_named_and_changes_nothing(damage, tmp_path):
    plan, path, batches = TrainPlan(steps=1), tmp_path / "run.pt", random_windows(TEXT, 1, 8)
    smaller = GPT(GPTConfig(n_layer=1, n_embd=16, n_head=2, context=32))
    trained = tiny()
    if damage == "other optimizer":
        trained.norm.requires_grad_(False)
    run(smaller if damage == "other model" else trained, batches, plan, checkpoint=path)
    content = path.read_bytes()
    if damage == "foreign":
        torch.save({"weights": torch.zeros(1)}, path)
    elif "other" not in damage:
        path.write_bytes({"empty": b"", "junk": b"junk", "truncated": content[: len(content) // 2]}[damage])
    model, before = tiny(), tiny()
    with pytest.raises(ValueError, match=r"checkpoint is .*run\.pt', which (is no checkpoint|belongs to another)"):
        run(model, batches, plan, checkpoint=path, resume=True)
    assert_same_weights(model, before, atol=0, rtol=0)


def test_what_torch_makes_of_a_full_disk_is_an_oserror(tmp_path, monkeypatch):
    def full(state, path):
        raise RuntimeError("PytorchStreamWriter failed writing file")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="cannot write .*run.pt: PytorchStreamWriter failed"):
        run(tiny(), random_windows(TEXT, 1, 8), TrainPlan(steps=1), checkpoint=tmp_path / "run.pt")


def test_a_bad_run_is_named(tmp_path):
    plan, batches = TrainPlan(steps=2), random_windows(TEXT, 1, 8)
    with pytest.raises(ValueError, match="nothing to train"):
        run(tiny().requires_grad_(False), batches, plan)
    with pytest.raises(ValueError, match="nothing to train"):
        run(nn.Identity(), batches, plan)
    with pytest.raises(ValueError, match="token_embedding.weight is torch.float32; call model.to"):
        run(tiny(), batches, TrainPlan(steps=1, precision="bf16"))
    with pytest.raises(ValueError, match="the sequence has 40 tokens; the model's context is 32"):
        run(tiny(), random_windows(TEXT, 1, 40), plan)
    with pytest.raises(ValueError, match="no target token"):
        run(tiny(), [(torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), IGNORE))], plan)
    with pytest.raises(ValueError, match="validation set has no batch"):
        evaluate(tiny(), [])
    with pytest.raises(ValueError, match="checkpoint is .*nowhere.pt'; to resume, it must be a file"):
        run(tiny(), batches, plan, checkpoint=tmp_path / "nowhere.pt", resume=True)
    run(tiny(), batches, plan, checkpoint=tmp_path / "run.pt")
    with pytest.raises(ValueError, match="lr is 0.5, but the checkpoint's plan has 0.001"):
        run(tiny(), batches, TrainPlan(steps=2, lr=0.5), checkpoint=tmp_path / "run.pt", resume=True)
    with pytest.raises(ValueError, match="batches ended at number 1; 2 steps need 2 micro-batches"):
        run(tiny(), [batches[0]], plan)
