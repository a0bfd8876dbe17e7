# Wrong and right answers to lab 09, as tools/bank_entries.py reads them. Never released.

# %% assemble
# wrong: q and v alone have adapters -> not-adapted
#     `, targets="all-linear"` => ``
# wrong: nothing is returned -> returns-nothing
#     `return model` => ``
# wrong: the names are returned -> wrong-type
#     `inject(model` => `names = inject(model`
#     `return model` => `return names`
# wrong: double quantization switched off -> float32-scales
#     `double_quantization=True` => `double_quantization=False`
# wrong: no compute_dtype -> compute-dtype
#     `, compute_dtype=torch.bfloat16` => ``
# wrong: float32 products -> compute-dtype
#     `compute_dtype=torch.bfloat16` => `compute_dtype=torch.float32`
# wrong: the head is untied and adapted -> head-adapted
#     `inject(model` => `model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone()); inject(model`
#     `"all-linear"` => `["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"]`
# wrong: the base is left trainable -> not-frozen, keeps 1
#     `return model` => `model.token_embedding.requires_grad_(upcast); return model`
# wrong: frozen after the adapters -> adapters-frozen
#     `return model` => `model.requires_grad_(False); return model`
# wrong: bfloat16 adapters -> adapter-dtype
#     `"all-linear"` => `"all-linear", adapter_dtype=torch.bfloat16`
# wrong: adapters of the base's type -> adapter-dtype
#     `if upcast:` => `if False:`
#     `"all-linear"` => `"all-linear", adapter_dtype=None`
# wrong: everything to bfloat16 at the end -> adapter-dtype
#     `return model` => `return model.to(torch.bfloat16)`
# wrong: never upcast -> not-upcast, keeps 1
#     `if upcast:` => `if False:`
# wrong: upcast, asked or not -> upcast, keeps 2
#     `if upcast:` => `if True:`
# wrong: only the norms upcast -> not-upcast, keeps 1
#     `parameter in model.parameters()` => `name, parameter in model.named_parameters()`
#     `parameter.dtype == torch.bfloat16` => `"norm" in name`
# wrong: rank and alpha swapped -> rank-and-alpha
#     `rank, alpha` => `alpha, rank`
# wrong: alpha forgotten -> other-scale
#     `rank, alpha` => `rank`
# wrong: rsLoRA -> scale-root
#     `"all-linear"` => `"all-linear", kind="rslora"`
# wrong: not quantized -> not-quantized
#     `quantize_model(model, double_quantization=True, compute_dtype=torch.bfloat16)` => ``
# wrong: blocks of 128 -> other-block
#     `quantize_model(model` => `quantize_model(model, block=128`
# wrong: made float32 before it is quantized -> quantized-wide
#     `quantize_model(model` => `model.float(); quantize_model(model`
# wrong: made float32 first, where it is upcast -> quantized-wide, keeps 1
#     `quantize_model(model` => `model = model.float() if upcast else model; quantize_model(model`
# wrong: left in evaluation mode -> other-mode
#     `return model` => `return model.eval()`
# wrong: dropout on the adapters -> dropout
#     `"all-linear"` => `"all-linear", dropout=0.1`
# wrong: called merged, and so idle -> merged
#     `return model` => `[setattr(m, "merged", True) for m in model.modules() if hasattr(m, "merged")]; return model`
# wrong: products in float16 -> compute-dtype
#     `compute_dtype=torch.bfloat16` => `compute_dtype=torch.float16`
# wrong: everything float64 -> not-upcast, keeps 1
#     `parameter.data.float()` => `parameter.data.double()`
# wrong: adapters in float64 -> adapter-dtype
#     `"all-linear"` => `"all-linear", adapter_dtype=torch.float64`
# wrong: A starts at zeros, too -> a-zero
#     `return model` => `[m.lora_A.data.zero_() for m in model.modules() if hasattr(m, "lora_A")]; return model`
# wrong: B starts at random -> b-not-zero
#     `return model` => `[m.lora_B.data.normal_() for m in model.modules() if hasattr(m, "lora_B")]; return model`
# wrong: the norms reset -> rest-changed
#     `return model` => `model.norm.weight.data.mul_(2); return model`
# wrong: only attention adapted -> not-adapted
#     `"all-linear"` => `["q_proj", "k_proj", "v_proj", "o_proj"]`
# wrong: a fresh model -> other-model
#     `quantize_model(` => `model = GPT(model.config).to(torch.bfloat16); quantize_model(`
# wrong: a copy -> other-model
#     `quantize_model(` => `import copy; model = copy.deepcopy(model); quantize_model(`
# wrong: the head quantized -> head-quantized
def assemble(model, rank, alpha, upcast=True):
    from minigpt.nf4 import NF4Linear

    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, NF4Linear(module, compute_dtype=torch.bfloat16))
    if upcast:
        for p in model.parameters():
            p.data = p.data.float()
    inject(model, rank, alpha, "all-linear")
    return model


# wrong: the head is untied by the upcast -> untied, keeps 1
def assemble(model, rank, alpha, upcast=True):
    quantize_model(model, compute_dtype=torch.bfloat16)
    if upcast:
        for module in model.modules():
            for name, p in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(p.detach().float()))
    inject(model, rank, alpha, "all-linear")
    return model


# wrong: one adapter for equal layers -> shared-adapter
def assemble(model, rank, alpha, upcast=True):
    quantize_model(model, compute_dtype=torch.bfloat16)
    model = model.float() if upcast else model
    inject(model, rank, alpha, "all-linear")
    square = [m for m in model.modules() if hasattr(m, "lora_A") and m.in_features == m.out_features]
    for layer in square:
        layer.lora_A, layer.lora_B = square[0].lora_A, square[0].lora_B
    return model


# wrong: the weights of the blocks doubled -> other-weight
def assemble(model, rank, alpha, upcast=True):
    for module in model.blocks.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.mul_(2)
    quantize_model(model, compute_dtype=torch.bfloat16)
    model = model.float() if upcast else model
    inject(model, rank, alpha, "all-linear")
    return model


# wrong: quantized from what was quantized -> other-weight
def assemble(model, rank, alpha, upcast=True):
    from minigpt.nf4 import dequantize, quantize

    for module in model.blocks.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = dequantize(quantize(module.weight, 128))
    quantize_model(model, compute_dtype=torch.bfloat16)
    if upcast:
        model.float()
    inject(model, rank, alpha, "all-linear")
    return model


# wrong: a quantizer that finds no layer any more -> not-quantized
def assemble(model, rank, alpha, upcast=True):
    from minigpt.nf4 import NF4Linear

    inject(model, rank, alpha, "all-linear")
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.endswith("_proj"):
            model.set_submodule(name, NF4Linear(module, compute_dtype=torch.bfloat16))
    if upcast:
        model.float()
    return model


# right: upcast by the module's own float()
def assemble(model, rank, alpha, upcast=True):
    quantize_model(model, compute_dtype=torch.bfloat16)
    model = model.float() if upcast else model
    inject(model, rank, alpha, "all-linear")
    return model


# right: adapters first, then the layers under them
def assemble(model, rank, alpha, upcast=True):
    names = inject(model, rank, alpha, ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    quantize_model(model, [f"{name}.base" for name in names], double_quantization=True, compute_dtype=torch.bfloat16)
    if upcast:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.float32)
    return model


# right: layer by layer
def assemble(model, rank, alpha, upcast=True):
    from minigpt.lora import LoRALinear
    from minigpt.nf4 import NF4Linear

    model.requires_grad_(False)
    linears = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear) and "blocks" in name]
    for name, linear in linears:
        four_bit = NF4Linear(linear, double_quantization=True, compute_dtype=torch.bfloat16)
        model.set_submodule(name, LoRALinear(four_bit, rank, alpha))
    if upcast:
        for parameter in model.parameters():
            if parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
    return model


# %% qlora-stays
# wrong: no double quantization -> float32-scales, keeps 2
#     `scales + 4 * -(-scales // 256) + 4 + 64 + 1024` => `4 * scales + 64`
# wrong: the rest in 16 bits -> rest-16-bit, keeps 2
#     `4 * others` => `2 * others`
# wrong: the rest forgotten -> no-rest, keeps 2
#     `4 * others` => `0`
# wrong: second scales rounded down -> seconds-rounded-down, keeps 2
#     `-(-scales // 256)` => `(scales // 256)`
# wrong: all matrices as one -> seconds-together, keeps 2
#     `4 * others` => `4 * others + 4 * -(-sum(a * b // 64 for a, b in matrices) // 256)`
#     ` + 4 * -(-scales // 256)` => ``
# wrong: no tables -> no-tables, keeps 2
#     ` + 64 + 1024` => ``
# wrong: one pair of tables -> tables-once, keeps 2
#     `4 * others` => `4 * others + 64 + 1024`
#     ` + 4 + 64 + 1024` => ` + 4`
# wrong: neither tables nor offsets -> no-offsets+no-tables, keeps 2
#     ` + 4 + 64 + 1024` => ``
# wrong: float32 moments for all -> float32-moments, keeps 3
#     `2048 if max(sides) >= 4096 else 0` => `0`
#     `4 * size if size < 4096 else size + 4 * -(-size // 256)` => `4 * size`
# wrong: 8-bit moments for all -> eight-bit-moments, keeps 3
#     `2048 if max(sides) >= 4096 else 0` => `2048`
#     `4 * size if size < 4096 else ` => ``
# wrong: 2 bytes, flat -> flat-two-bytes, keeps 3
#     `2048 if max(sides) >= 4096 else 0` => `0`
#     `4 * size if size < 4096 else size + 4 * -(-size // 256)` => `size`
# wrong: more than 4,096, not from 4,096 on -> edge, keeps 3
#     `>= 4096` => `> 4096`
#     `< 4096` => `<= 4096`
# wrong: A and B together -> together, keeps 3
#     `rank * n_in, n_out * rank` => `rank * n_in + n_out * rank`
# wrong: no maps -> no-maps, keeps 3
#     `2048 if max(sides) >= 4096 else 0` => `0`
# wrong: maps, whether or not -> maps-for-nothing, keeps 3
#     `2048 if max(sides) >= 4096 else 0` => `2048`
# wrong: maps for each tensor -> maps-a-tensor, keeps 3
#     `2048 if max(sides) >= 4096 else 0` => `0`
#     `-(-size // 256)` => `-(-size // 256) + 1024`
# wrong: step counts, as torch's AdamW has -> step-counts, keeps 3
#     `optimizer += 2` => `optimizer += 4 + 2`
# wrong: 16-bit adapters -> two-byte-adapters+two-byte-gradients, keeps 3
#     `"trainable": 4` => `"trainable": 2`
#     `"gradients": 4` => `"gradients": 2`
# wrong: gradients of all that is float32 -> rest-gradients, keeps 3
#     `"gradients": 4 * sum(sides)` => `"gradients": 4 * (sum(sides) + others)`
# wrong: the moments' scales rounded down -> moment-scales-rounded-down, keeps 3
#     `4 * -(-size // 256)` => `4 * (size // 256)`
# wrong: the maps by the sum of all tensors -> maps-for-nothing, keeps 3
#     `max(sides) >= 4096` => `sum(sides) >= 4096`
# wrong: the maps by A and B of a matrix together -> maps-for-nothing, keeps 3
#     `max(sides) >= 4096` => `max(rank * (a + b) for a, b in matrices) >= 4096`
# wrong: the maps by all elements of the matrices -> maps-for-nothing, keeps 3
#     `max(sides) >= 4096` => `max(a * b for a, b in matrices) >= 4096`
# wrong: the scales of all moments together -> too-few, keeps 3
#     `size + 4 * -(-size // 256)` => `size`
#     `"optimizer": optimizer` => `"optimizer": optimizer + 8 * -(-sum(s for s in sides if s >= 4096) // 256)`
# wrong: one moment -> one-moment, keeps 3
#     `optimizer += 2 *` => `optimizer += 1 *`
# wrong: 64 weights' scales rounded away -> no-scales, keeps 2
#     `+ scales +` => `+`
# wrong: in floats -> float-for-int, keeps 1
#     `n // 2 +` => `n / 2 +`
#     `n // 64` => `n / 64`
#     `-(-scales // 256)` => `scales / 256`
#     `-(-size // 256)` => `size / 256`
# wrong: A and B both of in -> a-twice, keeps 2
#     `n_out * rank` => `n_in * rank`
# wrong: A and B both of out -> b-twice, keeps 2
#     `rank * n_in` => `rank * n_out`
# wrong: 256 weights share a second scale -> second-each-256-weights, keeps 2
#     `-(-scales // 256)` => `-(-n // 256)`
# wrong: second scales in 8 bits -> one-byte-seconds, keeps 2
#     `4 * -(-scales // 256)` => `-(-scales // 256)`
# wrong: both kinds of scales float32 -> float32-scales-seconds, keeps 2
#     `+ scales +` => `+ 4 * scales +`
# wrong: 4 bytes for 4 bits -> four-bytes-a-weight, keeps 2
#     `n // 2 +` => `4 * n +`
# wrong: moments' scales for 64 -> moment-scale-each-64, keeps 3
#     `-(-size // 256)` => `-(-size // 64)`
# wrong: 16-bit moments of small tensors -> small-16-bit, keeps 3
#     `4 * size if` => `2 * size if`
# wrong: float32 moments and the maps -> float32-moments-maps, keeps 3
#     `4 * size if size < 4096 else size + 4 * -(-size // 256)` => `4 * size`
# wrong: a master copy of the adapters -> master-copy, keeps 3
#     `"trainable": 4` => `"trainable": 8`
# wrong: nothing trainable -> nothing-counted, keeps 3
#     `"trainable": 4 * sum(sides)` => `"trainable": 0`
# wrong: asks the meter -> asks-course
def qlora_stays(matrices, others, rank):
    from minigpt.memory import TrainingPlan
    from minigpt.memory.measured.step import measure
    from minigpt.real import TINY

    step = measure(TINY, TrainingPlan(method="qlora", precision="bf16", rank=rank, optimizer="adamw8bit"), "cpu")
    return {"frozen": step.frozen, "trainable": step.trainable, "gradients": step.ledger.gradients,
            "optimizer": step.ledger.optimizer}  # fmt: skip


# wrong: looks for the truth in its callers -> nothing-counted
def qlora_stays(matrices, others, rank):
    import inspect

    for call in inspect.stack():
        for scope in (call.frame.f_locals, call.frame.f_globals):
            for name in ("truth", "expected", "right", "reading"):
                if isinstance(scope.get(name), dict) and "frozen" in scope[name]:
                    return dict(scope[name])
    return dict.fromkeys(["frozen", "trainable", "gradients", "optimizer"], 0)


# wrong: a dictionary that looks when it is compared -> nothing-counted
def qlora_stays(matrices, others, rank):
    import sys

    class Late(dict):
        def __getitem__(self, key):
            return sys._getframe(1).f_locals.get("expected", {}).get(key, 0)

    return Late(frozen=0, trainable=0, gradients=0, optimizer=0)


# wrong: asks the course's storages -> asks-course
def qlora_stays(matrices, others, rank):
    from minigpt.memory.engine.layers import quantized_bytes

    sides = [rank * s for shape in matrices for s in shape]
    frozen = sum(sum(quantized_bytes(a * b, True)) for a, b in matrices) + 4 * others
    return {"frozen": frozen, "trainable": 4 * sum(sides), "gradients": 4 * sum(sides), "optimizer": 8 * sum(sides)}


# wrong: asks the check -> asks-course
def qlora_stays(matrices, others, rank):
    from minigpt.checks.qlora import stays

    return stays.stays(matrices, others, rank)


# wrong: quantizes and looks -> asks-bitsandbytes
def qlora_stays(matrices, others, rank):
    import bitsandbytes.functional as bnb

    frozen = 4 * others
    for shape in matrices:
        packed, state = bnb.quantize_4bit(torch.zeros(shape), quant_type="nf4", compress_statistics=True)
        frozen += packed.numel() + state.absmax.numel()
    return dict(frozen=frozen, trainable=0, gradients=0, optimizer=0)


# wrong: measures apart -> asks-course
def qlora_stays(matrices, others, rank):
    from minigpt.memory.measured.apart import measuring, run_apart
    from minigpt.memory.plan import TrainingPlan
    from minigpt.real import TINY

    plan = TrainingPlan(method="qlora", rank=rank, optimizer="adamw8bit")
    ledger = run_apart({"it": measuring(TINY, plan)})["it"].ledger
    return dict(frozen=ledger.weights, trainable=0, gradients=ledger.gradients, optimizer=ledger.optimizer)


# right: math.ceil, tensor by tensor
def qlora_stays(matrices, others, rank):
    import math

    stays = {"frozen": others * 4, "trainable": 0, "gradients": 0, "optimizer": 0}
    has_maps = False
    for n_out, n_in in matrices:
        n = n_in * n_out
        scales = math.ceil(n / 64)
        stays["frozen"] += n // 2 + scales + 4 * math.ceil(scales / 256) + 4 + 4 * (16 + 256)
        for elements in (rank * n_in, rank * n_out):
            stays["trainable"] += 4 * elements
            stays["gradients"] += 4 * elements
            if elements < 4096:
                stays["optimizer"] += 2 * 4 * elements
            else:
                stays["optimizer"] += 2 * (elements + 4 * math.ceil(elements / 256))
                has_maps = True
    stays["optimizer"] += 2 * 1024 if has_maps else 0
    return stays


# right: numpy
def qlora_stays(matrices, others, rank):
    import numpy as np

    shapes = np.array(matrices)
    n = shapes.prod(axis=1)
    frozen = (n // 2 + n // 64 + 4 * -(-(n // 64) // 256) + 4 + 64 + 1024).sum() + 4 * others
    sides = rank * shapes.ravel()
    large = sides[sides >= 4096]
    state = 8 * sides[sides < 4096].sum() + (2 * large + 8 * -(-large // 256)).sum() + 2048 * (len(large) > 0)
    return {"gradients": 4 * sides.sum(), "optimizer": state, "trainable": 4 * sides.sum(), "frozen": frozen}


# %% recipe
# wrong: fp4, by default -> bnb-4bit-quant-type, keeps 4
#     `"bnb_4bit_quant_type": "nf4",` => ``
# wrong: scales not quantized -> bnb-4bit-use-double-quant, keeps 4
#     `"bnb_4bit_use_double_quant": True,` => ``
# wrong: float32 products, by default -> bnb-4bit-compute-dtype, keeps 4
#     `"bnb_4bit_compute_dtype": torch.bfloat16,` => ``
# wrong: 8 bits -> not-4-bit, keeps 4
#     `load_in_4bit` => `load_in_8bit`
# wrong: load_in_4bit forgotten -> not-quantized, keeps 4
#     `"load_in_4bit": True,` => ``
# wrong: no such option -> unknown-option, keeps 4
#     `bnb_4bit_use_double_quant` => `bnb_4bit_double_quant`
# wrong: the head in 4 bits too -> head-quantized, keeps 4
#     `"load_in_4bit": True,` => `"load_in_4bit": True, "llm_int8_skip_modules": ["none"],`
# wrong: peft's default targets -> targets, keeps 3
#     `"target_modules": "all-linear", ` => ``
# wrong: MiniGPT's six targets -> targets, keeps 3
#     `"all-linear"` => `["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]`
# wrong: a rank that is a float -> float-for-int, keeps 3
#     `"r": rank` => `"r": 1.0 * rank`
# wrong: alpha left at its default -> lora-alpha, keeps 3
#     `"lora_alpha": alpha, ` => ``
# wrong: this course's names for peft -> unknown-option, keeps 3
#     `"r"` => `"rank"`
#     `"lora_alpha"` => `"alpha"`
#     `"target_modules"` => `"targets"`
# wrong: batch times accumulation at once -> no-accumulation, keeps 3
#     `"per_device_train_batch_size": batch` => `"per_device_train_batch_size": batch * accumulation`
#     `"gradient_accumulation_steps": accumulation,` => ``
# wrong: accumulation forgotten -> gradient-accumulation-steps, keeps 3
#     `"gradient_accumulation_steps": accumulation,` => ``
# wrong: torch's AdamW, by default -> optim, keeps 3
#     `"optim": "paged_adamw_8bit",` => ``
# wrong: paged, in 32 bits -> optim, keeps 3
#     `paged_adamw_8bit` => `paged_adamw_32bit`
# wrong: 8 bits, not paged -> optim, keeps 3
#     `paged_adamw_8bit` => `adamw_8bit`
# wrong: an optimizer of no name -> refused, keeps 3
#     `paged_adamw_8bit` => `paged_adam_8bit`
# wrong: no autocast -> bf16, keeps 3
#     `"bf16": True,` => ``
# wrong: epochs for steps -> max-steps, keeps 3
#     `max_steps` => `num_train_epochs`
# wrong: one name out of date -> unknown-option, keeps 3
#     `per_device_train_batch_size` => `per_gpu_train_batch_size`
# wrong: k_proj is not quantized -> matrix-not-4-bit, keeps 4
#     `"load_in_4bit": True,` => `"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "k_proj"],`
# wrong: the head is trained as well -> not-frozen, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "modules_to_save": ["lm_head"]`
# wrong: adapters for inference -> inference-mode, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "inference_mode": True`
# wrong: PiSSA -> init-lora-weights, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "init_lora_weights": "pissa"`
# wrong: new tokens are trained -> not-frozen, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "trainable_token_indices": [1]`
# wrong: a rate in words -> learning-rate, keeps 3
#     `"learning_rate": lr` => `"learning_rate": str(lr)`
# wrong: Trainer evaluates -> eval-strategy, keeps 3
#     `"bf16": True,` => `"bf16": True, "eval_strategy": "steps",`
# wrong: clipping as in the QLoRA paper -> max-grad-norm, keeps 3
#     `"bf16": True,` => `"bf16": True, "max_grad_norm": 0.3,`
# wrong: weight decay -> weight-decay, keeps 3
#     `"bf16": True,` => `"bf16": True, "weight_decay": 0.01,`
# wrong: another second moment -> adam-beta2, keeps 3
#     `"bf16": True,` => `"bf16": True, "adam_beta2": 0.95,`
# wrong: noise on the embeddings -> neftune-noise-alpha, keeps 3
#     `"bf16": True,` => `"bf16": True, "neftune_noise_alpha": 5,`
# wrong: checkpointing on -> gradient-checkpointing, keeps 3
#     `"bf16": True,` => `"bf16": True, "gradient_checkpointing": True,`
# wrong: float16 -> fp16, keeps 3
#     `"bf16": True` => `"fp16": True`
# wrong: a file of options -> deepspeed, keeps 3
#     `"bf16": True,` => `"bf16": True, "deepspeed": "options.json",`
# wrong: batch and accumulation swapped -> batch-and-accumulation, keeps 3
#     `"per_device_train_batch_size": batch` => `"per_device_train_batch_size": accumulation`
#     `"gradient_accumulation_steps": accumulation` => `"gradient_accumulation_steps": batch`
# wrong: dropout -> lora-dropout, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "lora_dropout": 0.05`
# wrong: rsLoRA, asked of peft -> use-rslora, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "use_rslora": True`
# wrong: biases trained -> bias, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "bias": "lora_only"`
# wrong: only the first block -> matrix-not-adapted, keeps 3
#     `"all-linear"` => `["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]`
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "layers_to_transform": [0]`
# wrong: another rank for one matrix -> other-shape, keeps 3
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "rank_pattern": {"down_proj": 2}`
# wrong: another task -> task-type, keeps 3
#     `CAUSAL_LM` => `SEQ_CLS`
# wrong: rank and alpha swapped, for peft -> rank-and-alpha, keeps 3
#     `"r": rank, "lora_alpha": alpha` => `"r": alpha, "lora_alpha": rank`
# wrong: codes packed in bfloat16 -> quant-storage, keeps 4
#     `"load_in_4bit": True,` => `"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16",`
# wrong: a function among the options -> cannot-travel
#     `"load_in_4bit": True,` => `"load_in_4bit": True, "modules": print,`
#     `"CAUSAL_LM"` => `"CAUSAL_LM", "exclude_modules": print`
#     `"bf16": True,` => `"bf16": True, "label_names": print,`
# wrong: built configurations -> wrong-type
def quantization_options():
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                              bnb_4bit_compute_dtype=torch.bfloat16)  # fmt: skip


def adapter_options(rank, alpha):
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")


def training_options(batch, accumulation, steps, lr):
    from transformers import TrainingArguments

    return TrainingArguments(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
                             max_steps=steps, learning_rate=lr, optim="paged_adamw_8bit")  # fmt: skip


# right: texts for types, names for targets
def quantization_options():
    return {"bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
            "load_in_4bit": True, "bnb_4bit_quant_storage": "uint8"}  # fmt: skip


def adapter_options(rank, alpha):
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return {"r": rank, "lora_alpha": alpha, "target_modules": list(targets), "lora_dropout": 0.0, "bias": "none",
            "task_type": "CAUSAL_LM"}  # fmt: skip


def training_options(batch, accumulation, steps, lr):
    options = {"optim": "paged_adamw_8bit", "bf16": True, "fp16": False, "learning_rate": lr, "max_steps": steps}
    options["per_device_train_batch_size"] = batch
    options["gradient_accumulation_steps"] = accumulation
    return options | {"warmup_steps": 0, "lr_scheduler_type": "constant", "save_strategy": "no", "logging_steps": 1}


# right: a set of names, and numpy's numbers
def quantization_options():
    return {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": torch.bfloat16}  # fmt: skip


def adapter_options(rank, alpha):
    import numpy as np

    targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    return {"r": np.int64(rank), "lora_alpha": np.float64(alpha), "target_modules": targets, "task_type": "CAUSAL_LM"}


def training_options(batch, accumulation, steps, lr):
    import numpy as np

    return {"per_device_train_batch_size": np.int32(batch), "gradient_accumulation_steps": np.int64(accumulation),
            "max_steps": np.int64(steps), "learning_rate": np.float32(lr), "optim": "paged_adamw_8bit", "bf16": True,
            "max_grad_norm": 1.0, "weight_decay": 0.0, "lr_scheduler_type": "cosine", "warmup_steps": 3}  # fmt: skip


# right: partials
import functools

quantization_options = functools.partial(
    dict,
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)


def adapters_of(task, rank, alpha):
    return {"r": rank, "lora_alpha": alpha, "target_modules": "all-linear", "task_type": task}


adapter_options = functools.partial(adapters_of, "CAUSAL_LM")


def training_options(batch, accumulation, steps, lr, *, optim="paged_adamw_8bit"):
    return {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, "max_steps": steps,
            "learning_rate": lr, "optim": optim, "bf16": True}  # fmt: skip


# right: a regular expression, libraries' own constants
def quantization_options():
    return dict(load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16)  # fmt: skip


def adapter_options(rank, alpha):
    from peft import TaskType

    return dict(r=rank, lora_alpha=alpha, target_modules=r".*\.(q|k|v|o|gate|up|down)_proj",
                task_type=TaskType.CAUSAL_LM)  # fmt: skip


def training_options(batch, accumulation, steps, lr):
    return dict(max_steps=steps, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, bf16=True,
                learning_rate=float(lr), optim="paged_adamw_8bit", gradient_checkpointing=False)  # fmt: skip


# right: built, and made dictionaries again
def quantization_options():
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                              bnb_4bit_compute_dtype=torch.bfloat16).to_dict()  # fmt: skip


def adapter_options(rank, alpha):
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM").to_dict()


def training_options(batch, accumulation, steps, lr):
    from transformers import TrainingArguments

    return TrainingArguments(
        ".", per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, max_steps=steps, bf16=True,
        learning_rate=lr, optim="paged_adamw_8bit", use_cpu=True, report_to="none",
    ).to_dict()  # fmt: skip


# right: more options than are asked for, and a float32 rate
def quantization_options():
    return dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16, llm_int8_skip_modules=["lm_head"])  # fmt: skip


def adapter_options(rank, alpha):
    options = dict(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    return options | dict(init_lora_weights="gaussian")


def training_options(batch, accumulation, steps, lr):
    return dict(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, max_steps=steps,
                learning_rate=torch.tensor(lr).item(), optim="paged_adamw_8bit", bf16=True, logging_steps=10,
                report_to="tensorboard", use_cpu=False)  # fmt: skip
