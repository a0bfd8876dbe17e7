# %% default-bytes
# wrong: bf16 weights -> two-byte-weights, keeps 1
#     `"weights": 4 * parameters` => `"weights": 2 * parameters`
# wrong: bf16 gradients -> two-byte-gradients, keeps 1
#     `"gradients": 4 * parameters` => `"gradients": 2 * parameters`
# wrong: no step counts -> no-step-counts, keeps 1
#     `8 * parameters + 4 * tensors` => `8 * parameters`
# wrong: one step count -> one-step-count, keeps 1
#     `4 * tensors` => `4`
# wrong: one moment -> one-moment, keeps 1
#     `8 * parameters` => `4 * parameters`
# wrong: a master copy -> master-copy, keeps 1
#     `8 * parameters` => `12 * parameters`
# wrong: two bytes a logit -> two-byte-logits, keeps 1
#     `4 * tokens * words` => `2 * tokens * words`
# wrong: the logits with their gradient -> with-their-gradient, keeps 1
#     `4 * tokens * words` => `8 * tokens * words`
# wrong: a key forgotten -> wrong-keys
#     `"logits": 4 * tokens * words,` => ``
# wrong: a float -> float-for-int
#     every `4 * ` => `4.0 * `
#     `8 * ` => `8.0 * `
# wrong: asks the course -> asks-course
def default_bytes(parameters, tensors, tokens, words):
    from minigpt.memory import predict_static

    return {**predict_static("smollm2-135m", TrainingPlan()).as_dict(), "logits": 4 * tokens * words}


# right: by bytes of a parameter
def default_bytes(parameters, tensors, tokens, words):
    each = {"weights": 4, "gradients": 4, "optimizer": 8}
    said = {name: parameters * nbytes for name, nbytes in each.items()}
    said["optimizer"] += tensors * 4
    return said | {"logits": words * tokens * 4}


# right: numpy's integers
def default_bytes(parameters, tensors, tokens, words):
    import numpy as np

    n = np.int64(parameters)
    return dict(logits=4 * words * tokens, optimizer=8 * n + 4 * tensors, gradients=4 * n, weights=4 * n)


# %% epoch
# wrong: each length once -> kinds-not-documents, keeps 2
#     `sum(length * count for length, count in lengths.items())` => `sum(lengths)`
# wrong: rows of the kinds -> kinds-not-documents, keeps 2
#     `sum(lengths.values()) * seq_len` => `len(lengths) * seq_len`
# wrong: documents for tokens -> rows, keeps 2
#     `sum(length * count for length, count in lengths.items())` => `sum(lengths.values())`
# wrong: rows for tokens -> rows, keeps 2
#     `sum(lengths.values()) * seq_len` => `sum(lengths.values())`
# wrong: the documents alone -> not-filled, keeps 2
#     `sum(lengths.values()) * seq_len` => `useful`
# wrong: what fills up alone -> filling-alone, keeps 2
#     `sum(lengths.values()) * seq_len` => `sum(lengths.values()) * seq_len - useful`
# wrong: nothing for the weights' gradients -> no-weight-gradients, keeps 1
#     `(0 if frozen else 2)` => `0`
# wrong: frozen weights have gradients -> frozen-has-gradients, keeps 1
#     `(0 if frozen else 2)` => `2`
# wrong: the other way round -> no-weight-gradients, keeps 1
#     `(0 if frozen else 2)` => `(2 if frozen else 0)`
# wrong: checkpointing is free -> not-again, keeps 1
#     `(2 if again else 0)` => `0`
# wrong: always once more -> again-unasked, keeps 1
#     `(2 if again else 0)` => `2`
# wrong: the forward alone -> forward-alone, keeps 1
#     `2 + 2 + (0 if frozen else 2) + (2 if again else 0)` => `2`
# wrong: a multiplication and an addition are one -> multiply-add-is-two, keeps 1
#     `each * weights * tokens / speed` => `each * weights * tokens / speed / 2`
# wrong: hours -> differs, keeps 1
#     `each * weights * tokens / speed` => `each * weights * tokens / speed / 3600`
# wrong: asks the check -> asks-course, keeps 1
def least_seconds(weights, tokens, frozen, again, speed):
    from minigpt.checks.capstone import byhand

    return byhand.per_weight(frozen, again) * weights * tokens / speed


# right: a table
def least_seconds(weights, tokens, frozen, again, speed):
    each = {(True, False): 4, (True, True): 6, (False, False): 6, (False, True): 8}
    return weights / speed * tokens * each[frozen, again]


# right: a loop
def padded_tokens(lengths, seq_len):
    said = {"computed": 0, "useful": 0}
    for length in lengths:
        for _ in range(lengths[length]):
            said["useful"] += length
            said["computed"] += seq_len
    return said


# %% first-plan
# wrong: everything is trained -> state-too-large
#     `method="qlora", precision="fp16", autocast=True,` => ``
# wrong: no checkpointing -> activations-too-large
#     `checkpointing="full",` => ``
# wrong: one document in an update -> small-update
#     `batch=4, accumulation=4` => `batch=1`
# wrong: sixty-four in an update -> large-update
#     `batch=4, accumulation=4` => `batch=16, accumulation=4`
# wrong: rows shorter than the documents -> documents-cut
#     `seq_len=512` => `seq_len=256`
# wrong: the last tokens alone -> tokens-dropped
#     `checkpointing="full"` => `checkpointing="full", logits_to_keep=64`
# wrong: another card -> other-card
#     `card="T4"` => `card="H100 80GB"`
# wrong: no card -> other-card
#     `card="T4", ` => ``
# wrong: rank 1 on one matrix -> too-little-trained
#     `method="qlora"` => `method="qlora", rank=1, targets="q"`
# wrong: bfloat16 on a card without it -> emulated
#     `precision="fp16"` => `precision="bf16"`
# wrong: adapters in 16 bits -> trained-in-16-bits
#     `autocast=True` => `autocast=True, adapter_dtype="same"`
# wrong: a step without state -> other-step
#     `checkpointing="full"` => `checkpointing="full", step="first"`
# wrong: the card's kernels are not followed -> refused
#     `method="qlora", precision="fp16", autocast=True` => `method="qlora", precision="fp16", quantization="int8"`
# wrong: a card that is none -> raises-valueerror
#     `card="T4"` => `card="T5"`
# wrong: a number in words -> wrong-type
#     `return TrainingPlan(` => `return "4 x 512"; dict(`
# wrong: a field that is none -> unknown-field
#     `return TrainingPlan(` => `return dict(`
#     `checkpointing="full"` => `checkpoint="full"`
# wrong: a value that is no value -> wrong-type
#     `return TrainingPlan(` => `return dict(`
#     `batch=4` => `batch=[4]`
# wrong: a plan that changes -> unsteady
def first_plan():
    first_plan.asked = getattr(first_plan, "asked", 0) + 1
    return dict(card="T4", method="qlora", precision="fp16", batch=first_plan.asked, accumulation=4, seq_len=512)


# wrong: searches while it is judged -> asks-course
def first_plan():
    for batch in (16, 8, 4, 2, 1):
        plan = TrainingPlan(
            card="T4", method="qlora", precision="fp16", batch=batch, accumulation=16 // batch, seq_len=512
        )
        if predict(FIRST["model"], plan).peak.total < GPUS["T4"].room:
            return plan


# right: a dictionary, one document in a pass
def first_plan():
    return dict(card="t4", method="lora", precision="fp16", batch=1, accumulation=16, seq_len=512)


# right: LoRA, checkpointed, the loss in pieces
def first_plan():
    return TrainingPlan(
        card="T4", method="lora", precision="fp16", batch=16, seq_len=512, checkpointing="reentrant", loss="fused"
    )


# right: four bits, two in a pass, nothing run again
def first_plan():
    return {
        "card": "T4",
        "method": "qlora",
        "precision": "fp16",
        "kbit_preparation": False,
        "rank": 16,
        "batch": 2,
        "accumulation": 10,
        "seq_len": 512,
        "optimizer": "paged_adamw_8bit",
    }


# right: packed
def first_plan():
    return TrainingPlan(
        card="T4",
        method="lora",
        precision="fp16",
        batch=4,
        accumulation=2,
        seq_len=512,
        sequences="packed",
        checkpointing="full",
    )


# %% second-plan
# wrong: one document in a row -> padding, keeps 4
#     `accumulation=3` => `accumulation=16`
#     `"packed"` => `"padded"`
# wrong: one document in a row, and no mask -> scores
#     `accumulation=3` => `accumulation=16`
#     `sequences="packed", ` => ``
# wrong: the model's own loss -> logits-too-large
#     `, loss="fused"` => ``
# wrong: nothing is run again -> activations-too-large
#     `checkpointing="full", ` => ``
# wrong: every second block -> activations-too-large
#     `checkpointing="full"` => `checkpointing="every"`
# wrong: float32 products -> float32-products, keeps 4
#     `autocast=True, ` => ``
# wrong: no margin -> no-margin, keeps 4
#     `method="qlora", precision="fp16", autocast=True` => `method="lora", precision="fp16"`
#     `"fused"` => `"chunked"`
# wrong: three documents in an update -> small-update
#     `"packed"` => `"padded"`
# wrong: as many passes as before -> large-update
#     `accumulation=3` => `accumulation=16`
# wrong: the long ones are cut -> documents-cut
#     `seq_len=8192` => `seq_len=2048`
# wrong: the first plan -> documents-cut
def second_plan():
    return first_plan()


# wrong: a plan of its own class, which shows another card -> other-card
def second_plan():
    class Plan(TrainingPlan):
        def __eq__(self, other):
            return True

        __hash__ = TrainingPlan.__hash__

    return Plan(card="H200", method="lora", precision="bf16", accumulation=3, seq_len=8192, sequences="packed")


# right: LoRA on a 16-bit base, trl's loss
def second_plan():
    return dict(
        card="T4",
        method="lora",
        precision="fp16",
        accumulation=3,
        seq_len=8192,
        sequences="packed",
        checkpointing="reentrant",
        loss="trl",
        optimizer="adamw8bit",
    )


# right: four bits without the preparation, torchtune's pieces
def second_plan():
    return TrainingPlan(
        card="T4",
        method="qlora",
        precision="fp16",
        kbit_preparation=False,
        accumulation=3,
        seq_len=8192,
        sequences="packed",
        checkpointing="full",
        loss="chunked",
    )


# right: inputs on the CPU, more rank
def second_plan():
    options = dict(method="lora", precision="fp16", rank=16, checkpointing="offload", loss="fused")
    return TrainingPlan(card="Tesla T4", batch=1, accumulation=4, seq_len=8192, sequences="packed", **options)
