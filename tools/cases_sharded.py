"""What ``make accuracy`` compares with several ranks: its group "sharded"."""

from __future__ import annotations

from tools.cases import BF16, CHECKPOINTED, LORA, MIXED, QLORA, Case, Words, cross, each, one_of

KINDS = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
SOME = ("minigpt", "llama-grouped")
UNEVEN = "minigpt-uneven"  # no side of a weight divides by two
TWO: Words = dict(ranks=2, batch=2, seq_len=24)
FOUR: Words = dict(ranks=4, batch=1, seq_len=8)
HALVES: Words = dict(param_dtype="bf16")
SUMMED: Words = dict(param_dtype="bf16", reduce_dtype="fp32")


def sharded_cases() -> list[Case]:
    """Every way to share under what bytes depend on, and each word of one way with what it goes together with."""
    kinds, fsdp = one_of("sharding", KINDS), [dict(sharding="fsdp2")]
    policies: list[Words] = [HALVES, SUMMED, dict(param_dtype="fp16"), dict(BF16, reduce_dtype="fp32")]
    ways: list[Words] = [
        {}, BF16, MIXED, dict(accumulation=2), dict(BF16, accumulation=3), CHECKPOINTED, dict(BF16, **CHECKPOINTED),
        dict(attention="eager", holds="outputs"), dict(loss="shifted"), dict(optimizer="sgd_momentum"),
        dict(optimizer="sgd"), dict(optimizer_loop="single"),
    ]  # fmt: skip
    frozen: list[Words] = [dict(method="lora"), LORA, dict(LORA, adapter_dtype="same", **CHECKPOINTED), QLORA]
    kept: Words = dict(reshard_after_forward=False)
    views: list[Words] = [dict(sharding="ddp", gradient_as_bucket_view=True)]
    replicated = one_of("sharding", KINDS[:3])
    own: list[Words] = [
        dict(precision="bf16-adam32"), dict(precision="bf16-master"), dict(optimizer="kahan_adamw", **BF16)
    ]  # fmt: skip
    others = ("llama-biased", "qwen2-tied", "gpt2", "gemma2", "falcon", "bloom", "opt-narrow", "mixtral")
    return [
        *each(["minigpt"], cross([TWO], kinds, ways)),
        *each(["llama-grouped"], cross([TWO], kinds, [{}, MIXED, dict(BF16, accumulation=2, **CHECKPOINTED)])),
        *each(SOME, cross([TWO], one_of("sharding", ("ddp", "zero1", "zero2", "fsdp2")), frozen)),
        *each(SOME, cross([TWO], fsdp, [*policies, kept, dict(shard_offload="parameters")])),
        *each(["minigpt"], cross([TWO], fsdp, [SUMMED], [dict(accumulation=2), CHECKPOINTED, kept])),
        *each(["minigpt"], cross([TWO], views, [{}, BF16, dict(accumulation=2)])),
        *each(["minigpt"], cross([TWO], replicated, own)),
        *each([UNEVEN], cross([FOUR], kinds, [{}, BF16])),
        *each([UNEVEN], cross([FOUR], fsdp, [HALVES, SUMMED, kept, LORA])),
        *each(others, cross([TWO], [dict(sharding="zero3"), dict(sharding="fsdp2", **BF16, **CHECKPOINTED)])),
    ]
