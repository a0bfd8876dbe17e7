# Wrong and right answers to lab 08, as tools/bank_entries.py reads them. Never released.

# %% codebook
# wrong: the ends at 0 and 1, statistics -> raises-statisticserror
#     every `(end - 0.5)` => `0.5`
# wrong: symmetric, zero twice -> value-twice
#     `k / 8) for k in range(1, 9)` => `k / 7) for k in range(8)`
# wrong: seven on each side -> seven-above
#     `k / 8) for k in range(1, 9)` => `k / 7) for k in range(1, 8)`
# wrong: eight on each side -> eight-below
#     `k / 7) for k in range(1, 8)` => `k / 8) for k in range(1, 9)`
# wrong: never divided -> not-normalized
#     ` / above[-1]` => ``
# wrong: the sides swapped -> sides-swapped
#     `k / 8) for k in range(1, 9)` => `k / 7) for k in range(1, 8)`
#     `k / 7) for k in range(1, 8)` => `k / 8) for k in range(1, 9)`
# wrong: the larger first -> not-ascending
#     `sorted([*below, 0.0, *above])` => `[*reversed(above), 0.0, *below]`
# wrong: steps of a ninth and an eighth -> short-steps
#     `k / 8` => `k / 9`
#     `k / 7` => `k / 8`
# wrong: float64 -> wrong-dtype
#     `*above])` => `*above]), dtype=torch.float64`
# wrong: a list -> wrong-type
#     `torch.tensor(` => `[value / above[-1] for value in `
#     `*above])) / above[-1]` => `*above])]`
# wrong: sixteen equal shares -> no-zero
#     `sorted([*below, 0.0, *above])` => `[quantile((i + 0.5) / 16) for i in range(16)]`
#     `above[-1]` => `quantile(15.5 / 16)`
# wrong: the ends at 0 and 1, torch -> not-finite
def codebook(end):
    above = torch.special.ndtri(torch.linspace(0.5, 1, 9)[1:])
    below = torch.special.ndtri(torch.linspace(0, 0.5, 8)[:-1])
    values = torch.cat([below, torch.zeros(1), above])
    return values / values.max()


# wrong: sixteen equal steps from end to end -> no-zero
def codebook(end):
    values = torch.special.ndtri(torch.linspace(1 - end, end, 16, dtype=torch.float64))
    return (values / values.max()).float()


# wrong: equal steps of the value -> equal-values
def codebook(end):
    return torch.cat([torch.linspace(-1, 0, 8), torch.linspace(0, 1, 9)[1:]])


# wrong: the published table, typed -> fixed-end-0-968
def codebook(end):
    return torch.tensor([
        -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0, 0.0795803, 0.1609302,
        0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
    ])  # fmt: skip


# wrong: asks bitsandbytes -> asks-bitsandbytes
def codebook(end):
    return bnb.get_4bit_type("nf4", device="cpu")


# wrong: asks the course -> asks-course
def codebook(end):
    from minigpt.nf4 import derive_code

    return torch.tensor(derive_code(end))


# right: linspace and ndtri
def codebook(end):
    above = torch.special.ndtri(torch.linspace(0.5, end, 9, dtype=torch.float64))[1:]
    below = -torch.special.ndtri(torch.linspace(0.5, end, 8, dtype=torch.float64))
    values = torch.cat([below.flip(0), above])
    values[7] = 0  # not -0.0
    return (values / above[-1]).float()


# right: erfinv, float32 throughout
def codebook(end):
    p = torch.cat([torch.linspace(1 - end, 0.5, 8), torch.linspace(0.5, end, 9)[1:]])
    values = torch.erfinv(2 * p - 1)
    return values / values[-1]


# right: numpy and a loop
def codebook(end):
    import numpy as np

    values = np.zeros(16)
    for k in range(1, 9):
        values[7 + k] = NormalDist().inv_cdf(np.interp(k, [0, 8], [0.5, end]))
    for k in range(1, 8):
        values[7 - k] = NormalDist(0, 1).inv_cdf(np.interp(k, [0, 7], [0.5, 1 - end]))
    return torch.from_numpy((values / values.max()).astype(np.float32))


# %% quantize
# wrong: a tie takes the upper code -> tie-up, keeps 3
#     `code[:-1]) / 2` => `code[:-1]) / 2, right=True`
# wrong: w / absmax -> division, keeps 3
#     `rows * (1 / absmax.clamp(min=1e-38))` => `rows / absmax.clamp(min=1e-38)`
# wrong: float64 -> float64, keeps 3
#     `.float()` => `.double()`
#     `code[:-1]) / 2` => `code[:-1]).double() / 2`
#     `torch.uint8), absmax` => `torch.uint8), absmax.float()`
# wrong: absmax in the weight's dtype -> wrong-dtype, keeps 3
#     `.float()` => ``
#     `rows * (1 / absmax` => `rows.float() * (1 / absmax.float()`
# wrong: x in the weight's dtype -> low-precision+guarded, keeps 2
#     `.float()` => ``
#     `1e-38` => `1e-4`
#     `bucketize(x` => `bucketize(x.float()`
#     `torch.uint8), absmax` => `torch.uint8), absmax.float()`
# wrong: absmax of the whole tensor -> one-absmax
#     `rows.abs().amax(dim=1)` => `flat.abs().max().view(1)`
# wrong: absmax of the whole tensor, for each block -> one-absmax
#     `rows.abs().amax(dim=1)` => `flat.abs().max().repeat(len(rows))`
# wrong: one absmax a row -> absmax-a-row+absmax-a-weight
#     `F.pad(flat, (0, -len(flat) % block)).view(-1, block)` => `flat.view(len(weight), -1)`
# wrong: blocks down the columns -> columns
#     `weight.reshape(-1)` => `weight.t().reshape(-1)`
# wrong: strided blocks -> strided
#     `.view(-1, block)` => `.view(block, -1)`
#     `dim=1` => `dim=0`
#     `[:, None]` => ``
# wrong: max without abs -> no-abs
#     `rows.abs()` => `rows`
# wrong: the last block dropped -> short-block-lost
#     `F.pad(flat, (0, -len(flat) % block))` => `flat[: len(flat) // block * block]`
# wrong: whole blocks only -> raises-runtimeerror
#     `F.pad(flat, (0, -len(flat) % block))` => `flat`
# wrong: padding returned -> padding
#     `[: len(flat)]` => ``
# wrong: an epsilon -> guarded
#     `amax(dim=1)` => `amax(dim=1) + 1e-8`
# wrong: a clamp that small weights feel -> guarded, keeps 3
#     `amax(dim=1)` => `amax(dim=1).clamp(min=1e-6)`
# wrong: a clamp at 1e-8 in the division -> guarded, keeps 3
#     `1e-38` => `1e-8`
# wrong: a clamp at 1e-12 in the division -> guarded, keeps 3
#     `1e-38` => `1e-12`
# wrong: plus 1e-12 in the division -> guarded, keeps 3
#     `absmax.clamp(min=1e-38)` => `(absmax + 1e-12)`
# wrong: plus 1e-20 in the division -> guarded, keeps 3
#     `absmax.clamp(min=1e-38)` => `(absmax + 1e-20)`
# wrong: the value below, not the nearest -> largest-below
#     `(code[1:] + code[:-1]) / 2)` => `code, right=True).sub(1).clamp(0, len(code) - 1)`
# wrong: bucketize into the table itself -> smallest-above+tie-up
#     `(code[1:] + code[:-1]) / 2)` => `code).clamp(max=15)`
# wrong: argmin without abs -> argmin-of-x-minus-value
#     `torch.bucketize(x, (code[1:] + code[:-1]) / 2)` => `(x[..., None] - code).argmin(dim=-1)`
# wrong: half the range -> half-range
#     `rows.abs().amax(dim=1)` => `(rows.amax(dim=1) - rows.amin(dim=1)) / 2`
# wrong: absmax first -> swapped
#     `codes.view(-1)[: len(flat)].to(torch.uint8), absmax` => `absmax, codes.view(-1)[: len(flat)].to(torch.uint8)`
# wrong: integers -> integer-steps
#     `torch.bucketize(x, (code[1:] + code[:-1]) / 2)` => `(7 * x).round() + 7`
# wrong: never divided by absmax -> not-divided
#     ` * (1 / absmax.clamp(min=1e-38))[:, None]` => ``
# wrong: repeat, not repeat_interleave -> repeat
#     `rows * ` => `flat * `
#     `[:, None]` => `.repeat(block)[: len(flat)]`
# wrong: the standard deviation -> deviation
#     `rows.abs().amax(dim=1)` => `rows.std(dim=1)`
# wrong: 64, whatever the block -> absmax-each-64, keeps 3
#     `% block)).view(-1, block)` => `% 64)).view(-1, 64)`
# wrong: NF4, whatever the table -> differs, keeps 3
#     `x = rows *` => `table = torch.special.ndtri(torch.linspace(0.04, 0.96, 16)) / 1.75; x = rows *`
#     `codes = torch` => `code = code if len(code) == 16 else table; codes = torch`
# wrong: truth values for codes -> wrong-dtype
#     `.to(torch.uint8)` => `.bool()`
# wrong: codes without values -> odd-tensor
#     `.to(torch.uint8)` => `.to("meta")`
# wrong: int64 codes -> wrong-dtype
#     `.to(torch.uint8)` => ``
# wrong: zeros become ones -> zeros, keeps 3
#     `.clamp(min=1e-38)` => ``
#     `torch.uint8), absmax` => `torch.uint8), torch.where(absmax == 0, 1.0, absmax)`
# wrong: a NaN for an absmax of zero -> not-finite, keeps 3
#     `.clamp(min=1e-38)` => ``
#     `torch.uint8), absmax` => `torch.uint8), absmax + 0 * x.sum(dim=1)`
# wrong: scales the weight in place -> changes-arguments, keeps 1
#     `x = rows *` => `flat *=`
#     `[:, None]` => `.repeat_interleave(block)[: len(flat)]`
#     `bucketize(x` => `bucketize(flat`
# wrong: view, which a transposed weight does not have -> raises-runtimeerror, keeps 3
#     `weight.reshape(-1)` => `weight.view(-1)`
# wrong: rows as they lie in memory -> columns, keeps 3
#     `weight.reshape(-1)` => `torch.as_strided(weight, (weight.numel(),), (1,))`
# wrong: nothing is scaled where any block is zeros -> zeros-elsewhere, keeps 3
#     `rows * (1 / absmax.clamp(min=1e-38))[:, None]` => `rows * (1 / absmax if absmax.all() else absmax * 0)[:, None]`
# wrong: a table of 16 is taken for granted -> differs, keeps 3
#     `(code[1:] + code[:-1]) / 2` => `F.interpolate(((code[1:] + code[:-1]) / 2)[None, None], 15)[0, 0]`
# wrong: asks bitsandbytes -> asks-bitsandbytes
def quantize(weight, code, block):
    packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    return torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], 1).view(-1)[: weight.numel()], state.absmax


# wrong: asks bitsandbytes' kernel, and swallows the no -> asks-bitsandbytes
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    try:
        torch.ops.bitsandbytes.quantize_4bit(weight, block, "nf4", torch.uint8)
    except AssertionError:
        pass
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# wrong: asks the course -> asks-course
def quantize(weight, code, block):
    from minigpt import nf4

    made = nf4.quantize(weight, block)
    return torch.stack([made.packed >> 4, made.packed & 15], 1).view(-1)[: weight.numel()], made.absmax


# wrong: asks the checks -> asks-course
from minigpt.checks.four_bits.quantizing import rounded as quantize


# right: argmin of distances
def quantize(weight, code, block):
    n = weight.numel()
    padded = torch.zeros(-(-n // block) * block)
    padded[:n] = weight.flatten().to(torch.float32)
    rows = padded.reshape(-1, block)
    absmax = rows.abs().max(dim=1).values
    inverse = torch.where(absmax > 0, 1 / absmax, 0)
    x = (rows * inverse.unsqueeze(1)).flatten()[:n]
    return (x[:, None] - code).abs().argmin(dim=1).to(torch.uint8), absmax


# right: no guard: the code of NaN is the last, times an absmax of zero
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# right: a loop over blocks, no padding
def quantize(weight, code, block):
    codes, scales = [], []
    for part in weight.detach().flatten().split(block):
        part = part.float()
        a = part.abs().max()
        x = part * a.reciprocal() if a > 0 else part
        codes.append(sum((x > (low + high) / 2).to(torch.uint8) for low, high in zip(code, code[1:])))
        scales.append(a)
    return torch.cat(codes), torch.stack(scales)


# right: numpy
def quantize(weight, code, block):
    import numpy as np

    flat, table = weight.float().numpy().ravel(), code.numpy()
    rows = np.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
    absmax = np.abs(rows).max(axis=1)
    with np.errstate(all="ignore"):
        x = np.nan_to_num(rows * (np.float32(1) / absmax)[:, None])
    codes = np.searchsorted((table[1:] + table[:-1]) / np.float32(2), x.ravel()[: len(flat)], side="left")
    return torch.from_numpy(codes.astype(np.uint8)), torch.from_numpy(absmax)


# %% pack
# wrong: low nibble first -> low-half-first
#     `even << 4 | odd` => `odd << 4 | even`
#     `packed >> 4, packed & 15` => `packed & 15, packed >> 4`
# wrong: unpacks the low half first -> low-half-first, keeps 1
#     `packed >> 4, packed & 15` => `packed & 15, packed >> 4`
# wrong: the first half above the second -> first-half-high+high-halves-first
#     `.view(-1, 2).unbind(1)` => `.view(2, -1).unbind(0)`
#     `dim=1` => `dim=0`
# wrong: unpacks all high halves first -> high-halves-first, keeps 1
#     `dim=1` => `dim=0`
# wrong: odd numbers forgotten -> raises-runtimeerror, keeps 1
#     `F.pad(codes, (0, len(codes) % 2))` => `codes`
# wrong: the odd code dropped -> last-lost, keeps 1
#     `F.pad(codes, (0, len(codes) % 2))` => `codes[: len(codes) // 2 * 2]`
# wrong: the half byte left over is returned -> half-byte-too-many, keeps 1
#     `[:n]` => ``
# wrong: no shift -> not-shifted, keeps 1
#     `even << 4` => `even`
# wrong: the plus first -> plus-binds-first, keeps 1
#     `4 | odd` => `4 + odd`
# wrong: no mask -> not-masked, keeps 1
#     `packed & 15` => `packed`
# wrong: nothing packed -> not-packed+not-unpacked
#     `even << 4 | odd` => `codes.clone()`
#     `torch.stack([packed >> 4, packed & 15], dim=1).view(-1)[:n]` => `packed[:n]`
# wrong: int64 bytes -> wrong-dtype, keeps 1
#     `F.pad(codes` => `F.pad(codes.long()`
# wrong: a column, as bitsandbytes shapes it -> not-flat, keeps 1
#     `even << 4 | odd` => `(even << 4 | odd)[:, None]`
# wrong: packs into its argument -> changes-arguments, keeps 1
#     `even, odd =` => `codes[0::2] <<= 4; even, odd =`
#     `even << 4` => `even`
# wrong: a new tensor on the CPU -> needs-values, keeps 1
#     `packed & 15` => `torch.empty(len(packed), dtype=torch.uint8).copy_(packed & 15)`
# wrong: a number called unpack -> no-function, keeps 1
unpack = 15


# wrong: numpy, which needs a CPU -> needs-values, keeps 1
def unpack(packed, n):
    import numpy as np

    bytes_ = packed.numpy()
    return torch.from_numpy(np.stack([bytes_ >> 4, bytes_ & 0x0F], axis=-1).ravel()[:n].copy())


# wrong: asks the checks -> asks-course, keeps 1
from minigpt.checks.four_bits.quantizing import unpacked as unpack


# wrong: looks for the bytes in its callers -> raises-lookuperror, keeps 1
def pack(codes):
    import inspect

    seen = [value for frame in inspect.stack() for value in frame.frame.f_locals.values()]
    for value in filter(torch.is_tensor, seen):
        if value.dtype == torch.uint8 and len(value) == (len(codes) + 1) // 2:
            return value
    raise LookupError("no truth in sight")


# right: empty tensors, filled; the half left over is ones
def pack(codes):
    packed = torch.full(((len(codes) + 1) // 2,), 15, dtype=torch.uint8)
    packed[: len(codes) // 2] = codes[1::2]
    return packed + 16 * codes[0::2]


def unpack(packed, n):
    codes = torch.empty(2 * len(packed), dtype=torch.uint8, device=packed.device)
    codes[0::2], codes[1::2] = packed // 16, packed % 16
    return codes[:n]


# right: plain Python; bytes dealt out twice
def pack(codes):
    values = codes.tolist() + [0] * (len(codes) % 2)
    return torch.tensor([16 * a + b for a, b in zip(values[::2], values[1::2])], dtype=torch.uint8)


def unpack(packed, n):
    shift = torch.tensor([4, 0], dtype=torch.uint8, device=packed.device).repeat(len(packed))
    return (packed.repeat_interleave(2) >> shift)[:n] % 16


# %% dequantize
# wrong: multiplied in the weight's dtype -> low-product, keeps 1
#     `absmax.repeat` => `absmax.to(dtype).repeat`
#     `code[codes.int()]` => `code.to(dtype)[codes.int()]`
# wrong: the table rounded first -> low-table, keeps 1
#     `code[codes.int()]` => `code.to(dtype).float()[codes.int()]`
# wrong: float32, never cast -> wrong-dtype, keeps 1
#     `.to(dtype)` => ``
# wrong: repeat -> repeat
#     `repeat_interleave` => `repeat`
# wrong: absmax forgotten -> no-absmax
#     ` * scale` => ``
# wrong: divided -> divided
#     `* scale` => `/ scale`
# wrong: codes as integers -> integer-steps
#     `code[codes.int()]` => `(codes.float() - 7) / 7`
# wrong: codes not looked up -> codes-multiplied
#     `code[codes.int()]` => `codes`
# wrong: flat -> flat
#     `.view(shape)` => ``
# wrong: transposed -> transposed
#     `.view(shape)` => `.view(shape).t()`
# wrong: indexed with uint8 -> raises-indexerror
#     `codes.int()` => `codes`
# wrong: whole blocks only -> raises-runtimeerror
#     `code[codes.int()] * scale` => `code[codes.int()].view(-1, block) * absmax[:, None]`
# wrong: blocks of 64 always -> blocks-of-64+raises-runtimeerror
#     `repeat_interleave(block)` => `repeat_interleave(64)`
# wrong: a new tensor on the CPU -> needs-values
#     `(code[codes.int()] * scale)` => `torch.empty(len(codes)).copy_(code[codes.int()] * scale)`
# wrong: a mask of zeros on the CPU -> needs-values
#     `code[codes.int()] * scale` => `code[codes.int()] * scale * torch.ones(len(codes))`
# wrong: a little is added against zeros -> differs, keeps 1
#     `code[codes.int()] * scale` => `code[codes.int()] * (scale + 1e-8)`
# wrong: NF4, whatever the table -> other-table
def dequantize(codes, absmax, code, shape, dtype, block):
    from minigpt.nf4 import NF4_CODE

    table = torch.tensor(NF4_CODE, device=codes.device)
    return (table[codes.int()] * absmax.repeat_interleave(block)[: len(codes)]).to(dtype).view(shape)


# wrong: a loop in Python -> needs-values
def dequantize(codes, absmax, code, shape, dtype, block):
    table, scales = code.tolist(), absmax.tolist()
    values = [table[c] * scales[i // block] for i, c in enumerate(codes.tolist())]
    return torch.tensor(values, dtype=torch.float64).float().to(dtype).view(shape)


# wrong: looks for the weight in its callers -> raises-lookuperror
def dequantize(codes, absmax, code, shape, dtype, block):
    import sys

    frame = sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.shape == shape:
                return value.to(dtype)
        frame = frame.f_back
    raise LookupError("no truth in sight")


# wrong: a tensor that looks when it is compared -> wrong-type
class Peeking(torch.Tensor):
    def detach(self):
        import sys

        return sys._getframe(1).f_locals.get("truth", torch.Tensor.detach(self))


def dequantize(codes, absmax, code, shape, dtype, block):
    return torch.zeros(shape, dtype=dtype).as_subclass(Peeking)


# wrong: asks bitsandbytes -> asks-bitsandbytes
def dequantize(codes, absmax, code, shape, dtype, block):
    codes = F.pad(codes, (0, len(codes) % 2))
    packed = (codes[0::2] << 4 | codes[1::2])[:, None]
    out = torch.empty(shape, dtype=dtype)
    return bnb.dequantize_4bit(packed, absmax=absmax, out=out, blocksize=block, quant_type="nf4")


# wrong: asks the course -> asks-course
def dequantize(codes, absmax, code, shape, dtype, block):
    from minigpt import nf4

    codes = F.pad(codes, (0, len(codes) % 2))
    return nf4.dequantize(nf4.QuantizedWeight(codes[0::2] << 4 | codes[1::2], absmax, torch.Size(shape), dtype, block))


# right: padded blocks
def dequantize(codes, absmax, code, shape, dtype, block):
    values = torch.take(code, codes.long())
    values = F.pad(values, (0, -len(codes) % block)).reshape(-1, block)
    return (values * absmax.unsqueeze(-1)).flatten()[: len(codes)].reshape(shape).type(dtype)


# right: a loop over blocks
def dequantize(codes, absmax, code, shape, dtype, block):
    out = codes.new_empty(len(codes), dtype=dtype)
    for i, scale in enumerate(absmax):
        out[i * block : (i + 1) * block] = code[codes[i * block : (i + 1) * block].int()] * scale
    return out.reshape(tuple(shape))


# %% quantize-absmax
# wrong: no offset -> offset-zero, keeps 1
#     `absmax.mean()` => `torch.zeros(())`
# wrong: the offset is not subtracted -> not-subtracted+offset-forgotten
#     `absmax - offset` => `absmax`
#     ` + offset` => ``
# wrong: the unsigned table -> unsigned
#     every `"signed"` => `"unsigned"`
# wrong: blocks of 64 -> second-each-64+raises-runtimeerror
#     every `256` => `64`
# wrong: one absmax2 -> one-for-all+raises-runtimeerror
#     `rows.abs().amax(dim=1)` => `rows.abs().max().view(1)`
#     `absmax2.repeat_interleave(256)[: len(codes)]` => `absmax2`
# wrong: an offset a block -> many-offsets+raises-runtimeerror
#     `absmax.mean()` => `F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256).mean(dim=1)`
#     `absmax - offset` => `absmax - offset.repeat_interleave(256)[: len(absmax)]`
#     `scale + offset` => `scale + offset.repeat_interleave(256)[: len(codes)]`
# wrong: the smallest as offset -> offset-smallest+unsigned
#     `absmax.mean()` => `absmax.min()`
#     every `"signed"` => `"unsigned"`
# wrong: the offset a float -> offset-float, keeps 1
#     `absmax.mean()` => `absmax.mean().item()`
# wrong: padded before the offset is taken away -> padding, keeps 1
#     `absmax - offset` => `absmax`
#     `.view(-1, 256)` => `.view(-1, 256) - offset`
# wrong: the padding in the mean -> padding, keeps 1
#     `absmax.mean()` => `F.pad(absmax, (0, -len(absmax) % 256)).mean()`
#     `absmax - offset` => `absmax`
#     `.view(-1, 256)` => `.view(-1, 256) - offset`
# wrong: the offset before absmax2 -> swapped+raises-runtimeerror
#     `absmax2, offset` => `offset, absmax2`
#     `absmax2.repeat` => `offset.repeat`
#     `scale + offset` => `scale + absmax2`
# wrong: max without abs -> no-abs, keeps 1
#     `rows.abs()` => `rows`
# wrong: equal steps -> integer-steps
#     `torch.bucketize(x, (table[1:] + table[:-1]) / 2)` => `(127 * x).round() + 127`
#     `tables["signed"][codes.int()]` => `(codes.float() - 127) / 127`
# wrong: the value below, not the nearest -> largest-below, keeps 1
#     `(table[1:] + table[:-1]) / 2)` => `table, right=True).sub(1).clamp(0, 255)`
# wrong: never divided by absmax2 -> not-divided+no-second
#     ` * (1 / absmax2.clamp(min=1e-38))[:, None]` => ``
#     ` * scale` => ``
# wrong: the offset is not added again -> offset-forgotten, keeps 2
#     ` + offset` => ``
# wrong: decodes with the unsigned table -> unsigned, keeps 2
#     `"signed"][codes` => `"unsigned"][codes`
# wrong: the offset scaled too -> offset-multiplied, keeps 2
#     `tables["signed"][codes.int()] * scale + offset` => `(tables["signed"][codes.int()] + offset) * scale`
# wrong: a new tensor on the CPU -> needs-values, keeps 2
#     `scale + offset` => `torch.empty(len(codes)).copy_(scale) + offset`
# wrong: NaN where all values are alike -> not-finite, keeps 1
#     `.clamp(min=1e-38)` => ``
#     `torch.uint8), absmax2, offset` => `torch.uint8), absmax2 + 0 * x.sum(dim=1), offset`
# wrong: a one where all values are alike -> differs, keeps 1
#     `.clamp(min=1e-38)` => ``
#     `torch.uint8), absmax2, offset` => `torch.uint8), torch.where(absmax2 > 0, absmax2, 1.0), offset`
# wrong: bitsandbytes' own table, whatever is given -> other-table, keeps 2
OWN = bnb.create_dynamic_map()


def dequantize_absmax(codes, absmax2, offset, tables):
    return OWN.to(codes.device)[codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# wrong: asks the course for its table -> asks-course, keeps 2
def dequantize_absmax(codes, absmax2, offset, tables):
    from minigpt.scales import dynamic_map

    table = dynamic_map(device=codes.device)
    return table[codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# wrong: asks the checks, both ways -> asks-course
from minigpt.checks.four_bits import nested, quantizing


def quantize_absmax(absmax, tables):
    return *quantizing.rounded(absmax - absmax.mean(), tables["signed"], 256), absmax.mean()


def dequantize_absmax(codes, absmax2, offset, tables):
    return nested._decode(codes, absmax2, offset)


# wrong: asks the checks, back -> asks-course, keeps 2
def dequantize_absmax(codes, absmax2, offset, tables):
    from minigpt.checks.four_bits.nested import _decode

    return _decode(codes, absmax2, offset)


# wrong: looks for the state in its callers -> raises-lookuperror, keeps 1
def quantize_absmax(absmax, tables):
    import traceback

    for frame, _ in traceback.walk_stack(None):
        for value in frame.f_locals.values():
            if getattr(value, "state2", None) is not None:
                return value.absmax, value.state2.absmax, value.offset
    raise LookupError("nobody has quantized it")


# wrong: asks bitsandbytes -> asks-bitsandbytes
def quantize_absmax(absmax, tables):
    offset = absmax.mean()
    codes, state = bnb.quantize_blockwise(absmax - offset, code=tables["signed"], blocksize=256)
    return codes, state.absmax, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return bnb.dequantize_blockwise(codes, absmax=absmax2, code=tables["signed"], blocksize=256) + offset


# wrong: asks the course -> asks-course, keeps 1
def quantize_absmax(absmax, tables):
    from minigpt.nf4 import quantize_statistics

    return quantize_statistics(absmax)


# right: argmin, divided, in a loop
def quantize_absmax(absmax, tables):
    offset = absmax.mean()
    codes, second = [], []
    for part in (absmax - offset).split(256):
        largest = part.abs().max()
        x = part / largest if largest > 0 else part
        codes.append((x[:, None] - tables["signed"]).abs().argmin(dim=1))
        second.append(largest)
    return torch.cat(codes).to(torch.uint8), torch.stack(second), offset


def dequantize_absmax(codes, absmax2, offset, tables):
    parts = [tables["signed"][part.long()] * scale for part, scale in zip(codes.split(256), absmax2)]
    return torch.cat(parts) + offset


# right: numpy; the offset with one element
def quantize_absmax(absmax, tables):
    import numpy as np

    values, table = absmax.numpy(), tables["signed"].numpy()
    offset = absmax.mean().reshape(1)
    x = values - offset.numpy()
    rows = np.pad(x, (0, -len(x) % 256)).reshape(-1, 256)
    second = np.abs(rows).max(axis=1)
    with np.errstate(all="ignore"):
        rows = np.nan_to_num(rows / second[:, None])
    codes = np.searchsorted((table[1:] + table[:-1]) / 2, rows.ravel()[: len(x)]).astype(np.uint8)
    return torch.from_numpy(codes), torch.from_numpy(second), offset


def dequantize_absmax(codes, absmax2, offset, tables):
    blocks = torch.arange(len(codes)) // 256
    return torch.addcmul(offset, tables["signed"][codes.long()], absmax2[blocks])


# %% four-bit-bytes
# wrong: rounds down -> short-block-lost
#     `-(-n // block)` => `n // block`
# wrong: half a weight lost -> odd-weight-lost, keeps 1
#     `(n + 1) // 2` => `n // 2`
# wrong: the offset forgotten -> no-offset, keeps 1
#     `+ 4 if double` => `if double`
# wrong: an offset in any case -> offset, keeps 1
#     `else 4 * blocks` => `else 4 * blocks + 4`
# wrong: whole blocks of codes -> padding
#     `(n + 1) // 2` => `blocks * block // 2`
# wrong: 16-bit scales -> two-byte-absmax, keeps 1
#     `else 4 * blocks` => `else 2 * blocks`
# wrong: the second level forgotten -> no-second, keeps 1
#     ` + 4 * -(-blocks // 256)` => ``
# wrong: the float32 absmax kept beside the codes -> float32-absmax-too, keeps 1
#     `scales = blocks` => `scales = 4 * blocks + blocks`
# wrong: the second absmax for 64 blocks -> second-each-64, keeps 1
#     `256` => `64`
# wrong: the second absmax for 256 weights -> second-each-256-weights, keeps 1
#     `-(-blocks // 256)` => `-(-n // 256)`
# wrong: the last 256 rounded down -> short-second-lost, keeps 1
#     `-(-blocks // 256)` => `(blocks // 256)`
# wrong: the tables counted -> table+both-tables
#     `+ 4 if double` => `+ 4 + 1024 if double`
#     `+ scales` => `+ scales + 64`
# wrong: a byte a weight -> byte-a-weight
#     `(n + 1) // 2` => `n`
# wrong: half a byte and nothing else -> no-absmax+no-scales-at-all
#     ` + scales` => ``
# wrong: bits -> bits
#     `(n + 1) // 2 + scales` => `8 * ((n + 1) // 2 + scales)`
# wrong: double never looked at -> plain, keeps 1
#     `if double` => `if False`
# wrong: 64, whatever the block -> blocks-of-64
#     `-(-n // block)` => `-(-n // 64)`
# wrong: the formula, in floats -> float-for-int
def four_bit_bytes(n, block, double):
    return n / 2 + (n / block + 4 * n / block / 256 + 4 if double else 4 * n / block)


# wrong: asks the course -> asks-course
def four_bit_bytes(n, block, double):
    from minigpt.memory.engine.layers import quantized_bytes

    return sum(quantized_bytes(n, double, tables=False))


# wrong: asks bitsandbytes -> asks-bitsandbytes
def four_bit_bytes(n, block, double):
    packed, state = bnb.quantize_4bit(torch.zeros(n), blocksize=block, quant_type="nf4", compress_statistics=double)
    tensors = [packed, state.absmax] + ([state.state2.absmax, state.offset] if double else [])
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


# wrong: asks the checks -> asks-course
from minigpt.checks.four_bits.storage import stored as four_bit_bytes


# wrong: asks the checks' slips -> asks-course
def four_bit_bytes(n, block, double):
    from minigpt.checks.four_bits import storage

    return (n + 1) // 2 - storage.byte_slips(n, block, double)["no-codes"][1]


# right: math.ceil
def four_bit_bytes(n, block, double):
    import math

    blocks = math.ceil(n / block)
    total = math.ceil(n / 2)
    if not double:
        return total + blocks * 4
    return total + blocks * 1 + math.ceil(blocks / 256) * 4 + 4


# right: its own functions on zeros, numpy integers
def four_bit_bytes(n, block, double):
    import numpy as np

    codes, absmax = quantize(torch.zeros(n), torch.linspace(-1, 1, 16), block)
    tensors = [pack(codes), *(quantize_absmax(absmax, dict(signed=torch.linspace(-1, 1, 256))) if double else [absmax])]
    return np.sum([tensor.numel() * tensor.element_size() for tensor in tensors])


# %% scale-bits
# wrong: bytes for bits -> bytes
#     `before = 32` => `before = 4`
#     `8 / block + 32` => `1 / block + 4`
#     `saved / 8` => `saved`
# wrong: 0.37 GB -> bits-for-gb, keeps 1
#     `weights * saved / 8 / 1e9` => `saved`
# wrong: 0.5 bytes a weight saved -> weights-themselves, keeps 1
#     `weights * saved / 8 / 1e9` => `weights * 0.5 / 1e9`
# wrong: 0.5 bits saved -> saved-is-before
#     `before - after` => `before`
# wrong: the second level forgotten -> no-second
#     ` + 32 / (block * 256)` => ``
# wrong: the 8-bit codes forgotten -> no-absmax-codes
#     `8 / block + ` => ``
# wrong: 16-bit scales -> two-byte-absmax
#     `before = 32` => `before = 16`
# wrong: the weight's own bits counted -> four-bits-too
#     `before = 32` => `before = 4 + 32`
#     `after = 8` => `after = 4 + 8`
# wrong: GiB -> gib-for-gb, keeps 1
#     `1e9` => `2**30`
# wrong: bits never made bytes -> bits, keeps 1
#     `saved / 8` => `saved`
# wrong: 256 weights share a second absmax -> second-each-256-weights
#     `(block * 256)` => `256`
# wrong: 64 blocks share a second absmax -> second-each-64
#     `256` => `64`
# wrong: the codes on top of the float32 -> float32-absmax-too
#     `after = 8` => `after = before + 8`
# wrong: numbers for blocks of 64 -> blocks-of-64
#     `before = 32 / block` => `before = 32 / 64`
#     `8 / block + 32 / (block * 256)` => `8 / 64 + 32 / (64 * 256)`
# wrong: 0.127 and 0.373, rounded -> differs
#     `8 / block + 32 / (block * 256)` => `round(8 / block + 32 / (block * 256), 3)`
# wrong: bytes for GB -> bytes-for-gb, keeps 1
#     ` / 1e9` => ``
# wrong: a key missing -> missing, keeps 1
#     `, "saved_gb": weights * saved / 8 / 1e9` => ``
# wrong: asks the course -> asks-course
def scale_bits(weights, block):
    from minigpt.memory.engine.layers import quantized_bytes

    n = 64 * 256 * 64
    before, after = (8 * sum(quantized_bytes(n, double, tables=False)) / n - 4 for double in (False, True))
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# wrong: asks the checks -> asks-course
from minigpt.checks.four_bits.storage import scale_bits


# right: from its own count of bytes
def scale_bits(weights, block):
    n = 256 * block
    before = 8 * four_bit_bytes(n, block, False) / n - 4
    after = 8 * (four_bit_bytes(n, block, True) - 4) / n - 4
    return dict(saved_gb=(before - after) * weights / 8e9, saved=before - after, after=after, before=before)


# right: tensors and fractions
def scale_bits(weights, block):
    from fractions import Fraction

    before, after = Fraction(32, block), Fraction(8, block) + Fraction(32, 256 * block)
    return {"before": torch.tensor(float(before)), "after": after, "saved": before - after,
            "saved_gb": float(weights * (before - after)) / (8 * 10**9)}  # fmt: skip
