# Wrong and right answers to lab 08, for tools/bank.py. Never released.
# ruff: noqa: E402, F811, F821

# %% exercise=codebook wrong="the ends at 0 and 1, torch" verdict=not-finite
def codebook(end):
    above = torch.special.ndtri(torch.linspace(0.5, 1, 9)[1:])
    below = torch.special.ndtri(torch.linspace(0, 0.5, 8)[:-1])
    values = torch.cat([below, torch.zeros(1), above])
    return values / values.max()


# %% exercise=codebook wrong="the ends at 0 and 1, statistics" verdict=raises-statisticserror
def codebook(end):
    above = [quantile(0.5 + 0.5 * k / 8) for k in range(1, 9)]
    below = [quantile(0.5 - 0.5 * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above])) / above[-1]


# %% exercise=codebook wrong="symmetric, zero twice" verdict=value-twice
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 7) for k in range(8)]
    return torch.tensor(sorted([*above, *(-value for value in above)])) / above[-1]


# %% exercise=codebook wrong="seven on each side" verdict=seven-above
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*above, 0.0, *(-value for value in above)])) / above[-1]


# %% exercise=codebook wrong="eight on each side" verdict=eight-below
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    return torch.tensor(sorted([*above, 0.0, *(-value for value in above)])) / above[-1]


# %% exercise=codebook wrong="sixteen equal shares" verdict=no-zero
def codebook(end):
    values = torch.tensor([quantile((i + 0.5) / 16) for i in range(16)])
    return values / values.max()


# %% exercise=codebook wrong="sixteen equal steps from end to end" verdict=no-zero
def codebook(end):
    values = torch.special.ndtri(torch.linspace(1 - end, end, 16, dtype=torch.float64))
    return (values / values.max()).float()


# %% exercise=codebook wrong="never divided" verdict=not-normalized
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above]))


# %% exercise=codebook wrong="the sides swapped" verdict=sides-swapped
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    below = [-quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    return torch.tensor(sorted([*below, 0.0, *above])) / above[-1]


# %% exercise=codebook wrong="equal steps of the value" verdict=equal-values
def codebook(end):
    return torch.cat([torch.linspace(-1, 0, 8), torch.linspace(0, 1, 9)[1:]])


# %% exercise=codebook wrong="the larger first" verdict=not-ascending
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(8, 0, -1)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor([*above, 0.0, *below]) / above[0]


# %% exercise=codebook wrong="steps of a ninth and an eighth" verdict=short-steps
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 9) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above])) / above[-1]


# %% exercise=codebook wrong="float64" verdict=wrong-dtype
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above]), dtype=torch.float64) / above[-1]


# %% exercise=codebook wrong="a list" verdict=wrong-type
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return [value / above[-1] for value in sorted([*below, 0.0, *above])]


# %% exercise=codebook wrong="the published table, typed" verdict=fixed-end-0-968
def codebook(end):
    return torch.tensor([
        -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0, 0.0795803, 0.1609302,
        0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
    ])  # fmt: skip


# %% exercise=codebook wrong="asks bitsandbytes" verdict=asks-bitsandbytes
def codebook(end):
    return bnb.get_4bit_type("nf4", device="cpu")


# %% exercise=codebook wrong="asks the course" verdict=asks-course
def codebook(end):
    from minigpt.nf4 import derive_code

    return torch.tensor(derive_code(end))


# %% exercise=codebook right="linspace and ndtri"
def codebook(end):
    above = torch.special.ndtri(torch.linspace(0.5, end, 9, dtype=torch.float64))[1:]
    below = -torch.special.ndtri(torch.linspace(0.5, end, 8, dtype=torch.float64))
    values = torch.cat([below.flip(0), above])
    values[7] = 0  # not -0.0
    return (values / above[-1]).float()


# %% exercise=codebook right="erfinv, float32 throughout"
def codebook(end):
    p = torch.cat([torch.linspace(1 - end, 0.5, 8), torch.linspace(0.5, end, 9)[1:]])
    values = torch.erfinv(2 * p - 1)
    return values / values[-1]


# %% exercise=codebook right="numpy and a loop"
def codebook(end):
    import numpy as np

    values = np.zeros(16)
    for k in range(1, 9):
        values[7 + k] = NormalDist().inv_cdf(np.interp(k, [0, 8], [0.5, end]))
    for k in range(1, 8):
        values[7 - k] = NormalDist(0, 1).inv_cdf(np.interp(k, [0, 7], [0.5, 1 - end]))
    return torch.from_numpy((values / values.max()).astype(np.float32))


# %% exercise=quantize wrong="a tie takes the upper code" verdict=tie-up points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2, right=True)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="w / absmax" verdict=division points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows / absmax.clamp(min=1e-38)[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="float64" verdict=float64 points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).double()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows / absmax.clamp(min=1e-38)[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]).double() / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax.float()


# %% exercise=quantize wrong="absmax in the weight's dtype" verdict=wrong-dtype points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1)
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows.float() * (1 / absmax.float().clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="x in the weight's dtype" verdict=low-precision+guarded points=2
def quantize(weight, code, block):
    flat = weight.reshape(-1)
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-4))[:, None]
    codes = torch.bucketize(x.float(), (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax.float()


# %% exercise=quantize wrong="absmax of the whole tensor" verdict=one-absmax
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = flat.abs().max().view(1)
    codes = torch.bucketize(flat * (1 / absmax), (code[1:] + code[:-1]) / 2)
    return codes.to(torch.uint8), absmax


# %% exercise=quantize wrong="absmax of the whole tensor, for each block" verdict=one-absmax
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = flat.abs().max().repeat(-(-len(flat) // block))
    codes = torch.bucketize(flat * (1 / absmax[0]), (code[1:] + code[:-1]) / 2)
    return codes.to(torch.uint8), absmax


# %% exercise=quantize wrong="one absmax a row" verdict=absmax-a-row+absmax-a-column
def quantize(weight, code, block):
    rows = weight.float().view(weight.shape[0], -1)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="blocks down the columns" verdict=columns
def quantize(weight, code, block):
    flat = weight.t().reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="strided blocks" verdict=strided
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(block, -1)
    absmax = rows.abs().amax(dim=0)
    x = rows * (1 / absmax.clamp(min=1e-38))
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="max without abs" verdict=no-abs
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="the last block dropped" verdict=short-block-lost
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = flat[: len(flat) // block * block].view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="whole blocks only" verdict=raises-runtimeerror
def quantize(weight, code, block):
    rows = weight.float().view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="padding returned" verdict=padding
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return torch.bucketize(x, (code[1:] + code[:-1]) / 2).view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="an epsilon" verdict=guarded
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1) + 1e-8
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a clamp that small weights feel" verdict=guarded points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1).clamp(min=1e-6)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a clamp at 1e-8 in the division" verdict=guarded points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-8))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a clamp at 1e-12 in the division" verdict=guarded points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-12))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="plus 1e-12 in the division" verdict=guarded points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / (absmax + 1e-12))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="plus 1e-20 in the division" verdict=guarded points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / (absmax + 1e-20))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="the value below, not the nearest" verdict=largest-below
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = (torch.bucketize(x, code, right=True) - 1).clamp(0, len(code) - 1)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="bucketize into the table itself" verdict=smallest-above+tie-up
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return torch.bucketize(x, code).clamp(max=15).view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="argmin without abs" verdict=argmin-of-x-minus-value
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return (x.view(-1)[: len(flat), None] - code).argmin(dim=1).to(torch.uint8), absmax


# %% exercise=quantize wrong="half the range" verdict=half-range
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = (rows.amax(dim=1) - rows.amin(dim=1)) / 2
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="absmax first" verdict=swapped
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return absmax, codes.view(-1)[: len(flat)].to(torch.uint8)


# %% exercise=quantize wrong="integers" verdict=integer-steps
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return ((7 * x).round() + 7).view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="never divided by absmax" verdict=not-divided
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = F.pad(flat, (0, -len(flat) % block)).view(-1, block).abs().amax(dim=1)
    return torch.bucketize(flat, (code[1:] + code[:-1]) / 2).to(torch.uint8), absmax


# %% exercise=quantize wrong="repeat, not repeat_interleave" verdict=repeat
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = F.pad(flat, (0, -len(flat) % block)).view(-1, block).abs().amax(dim=1)
    x = flat * (1 / absmax.clamp(min=1e-38)).repeat(block)[: len(flat)]
    return torch.bucketize(x, (code[1:] + code[:-1]) / 2).to(torch.uint8), absmax


# %% exercise=quantize wrong="the standard deviation" verdict=deviation
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scale = rows.std(dim=1)
    codes = torch.bucketize(rows / scale[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), scale


# %% exercise=quantize wrong="64, whatever the block" verdict=absmax-each-64 points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % 64)).view(-1, 64)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="NF4, whatever the table" verdict=differs points=3
def quantize(weight, code, block):
    if len(code) != 16:
        code = torch.special.ndtri(torch.linspace(0.04, 0.96, 16)) / 1.75
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="int64 codes" verdict=wrong-dtype
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return torch.bucketize(x, (code[1:] + code[:-1]) / 2).view(-1)[: len(flat)], absmax


# %% exercise=quantize wrong="zeros become ones" verdict=zeros points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax)[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    absmax = torch.where(absmax == 0, 1.0, absmax)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a NaN for an absmax of zero" verdict=not-finite points=3
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax)[:, None]
    absmax = absmax + 0 * x.sum(dim=1)
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="scales the weight in place" verdict=changes-arguments points=1
def quantize(weight, code, block):
    flat = weight.view(-1).float()
    absmax = F.pad(flat, (0, -len(flat) % block)).view(-1, block).abs().amax(dim=1)
    flat *= (1 / absmax.clamp(min=1e-38)).repeat_interleave(block)[: len(flat)]
    return torch.bucketize(flat, (code[1:] + code[:-1]) / 2).to(torch.uint8), absmax


# %% exercise=quantize wrong="asks bitsandbytes" verdict=asks-bitsandbytes
def quantize(weight, code, block):
    packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    return torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], 1).view(-1)[: weight.numel()], state.absmax


# %% exercise=quantize wrong="asks bitsandbytes' kernel, and swallows the no" verdict=asks-bitsandbytes
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


# %% exercise=quantize wrong="asks the course" verdict=asks-course
def quantize(weight, code, block):
    from minigpt import nf4

    made = nf4.quantize(weight, block)
    return torch.stack([made.packed >> 4, made.packed & 15], 1).view(-1)[: weight.numel()], made.absmax


# %% exercise=quantize wrong="asks the checks" verdict=asks-course
from minigpt.checks.four_bits.quantizing import rounded as quantize


# %% exercise=quantize right="argmin of distances"
def quantize(weight, code, block):
    n = weight.numel()
    padded = torch.zeros(-(-n // block) * block)
    padded[:n] = weight.flatten().to(torch.float32)
    rows = padded.reshape(-1, block)
    absmax = rows.abs().max(dim=1).values
    inverse = torch.where(absmax > 0, 1 / absmax, 0)
    x = (rows * inverse.unsqueeze(1)).flatten()[:n]
    return (x[:, None] - code).abs().argmin(dim=1).to(torch.uint8), absmax


# %% exercise=quantize right="no guard: the code of NaN is the last, times an absmax of zero"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize right="a loop over blocks, no padding"
def quantize(weight, code, block):
    codes, scales = [], []
    for part in weight.detach().flatten().split(block):
        part = part.float()
        a = part.abs().max()
        x = part * a.reciprocal() if a > 0 else part
        codes.append(sum((x > (low + high) / 2).to(torch.uint8) for low, high in zip(code, code[1:])))
        scales.append(a)
    return torch.cat(codes), torch.stack(scales)


# %% exercise=quantize right="numpy"
def quantize(weight, code, block):
    import numpy as np

    flat, table = weight.float().numpy().ravel(), code.numpy()
    rows = np.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
    absmax = np.abs(rows).max(axis=1)
    with np.errstate(all="ignore"):
        x = np.nan_to_num(rows * (np.float32(1) / absmax)[:, None])
    codes = np.searchsorted((table[1:] + table[:-1]) / np.float32(2), x.ravel()[: len(flat)], side="left")
    return torch.from_numpy(codes.astype(np.uint8)), torch.from_numpy(absmax)


# %% exercise=pack wrong="low nibble first" verdict=low-half-first
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[1::2] << 4 | codes[0::2]


def unpack(packed, n):
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[:n]


# %% exercise=pack wrong="unpacks the low half first" verdict=low-half-first points=1
def unpack(packed, n):
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[:n]


# %% exercise=pack wrong="the first half above the second" verdict=first-half-high+high-halves-first
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[: len(codes) // 2] << 4 | codes[len(codes) // 2 :]


def unpack(packed, n):
    return torch.cat([packed >> 4, packed & 15])[:n]


# %% exercise=pack wrong="unpacks all high halves first" verdict=high-halves-first points=1
def unpack(packed, n):
    return torch.cat([packed >> 4, packed & 15])[:n]


# %% exercise=pack wrong="odd numbers forgotten" verdict=raises-runtimeerror points=1
def pack(codes):
    return codes[0::2] << 4 | codes[1::2]


# %% exercise=pack wrong="the odd code dropped" verdict=last-lost points=1
def pack(codes):
    codes = codes[: len(codes) // 2 * 2].view(-1, 2)
    return codes[:, 0] << 4 | codes[:, 1]


# %% exercise=pack wrong="the half byte left over is returned" verdict=half-byte-too-many points=1
def unpack(packed, n):
    return torch.stack([packed >> 4, packed & 15], dim=1).view(-1)


# %% exercise=pack wrong="no shift" verdict=not-shifted points=1
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[0::2] | codes[1::2]


# %% exercise=pack wrong="the plus first" verdict=plus-binds-first points=1
def pack(codes):
    even, odd = F.pad(codes, (0, len(codes) % 2)).view(-1, 2).unbind(1)
    return even << 4 + odd


# %% exercise=pack wrong="no mask" verdict=not-masked points=1
def unpack(packed, n):
    return torch.stack([packed >> 4, packed], dim=1).view(-1)[:n]


# %% exercise=pack wrong="nothing packed" verdict=not-packed+not-unpacked
def pack(codes):
    return codes.clone()


def unpack(packed, n):
    return packed[:n]


# %% exercise=pack wrong="int64 bytes" verdict=wrong-dtype points=1
def pack(codes):
    codes = F.pad(codes.long(), (0, len(codes) % 2))
    return codes[0::2] * 16 + codes[1::2]


def unpack(packed, n):
    return torch.stack([packed // 16, packed % 16], dim=1).view(-1)[:n]


# %% exercise=pack wrong="a column, as bitsandbytes shapes it" verdict=not-flat points=1
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return (codes[0::2] << 4 | codes[1::2])[:, None]


# %% exercise=pack wrong="packs into its argument" verdict=changes-arguments points=1
def pack(codes):
    codes[0::2] <<= 4
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[0::2] | codes[1::2]


# %% exercise=pack wrong="a new tensor on the CPU" verdict=needs-values points=1
def unpack(packed, n):
    codes = torch.empty(2 * len(packed), dtype=torch.uint8)
    codes[0::2], codes[1::2] = packed // 16, packed % 16
    return codes[:n]


# %% exercise=pack wrong="numpy, which needs a CPU" verdict=needs-values points=1
def unpack(packed, n):
    import numpy as np

    bytes_ = packed.numpy()
    return torch.from_numpy(np.stack([bytes_ >> 4, bytes_ & 0x0F], axis=-1).ravel()[:n].copy())


# %% exercise=pack wrong="asks the checks" verdict=asks-course points=1
from minigpt.checks.four_bits.quantizing import unpacked as unpack


def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[0::2] << 4 | codes[1::2]


# %% exercise=pack wrong="looks for the bytes in its callers" verdict=raises-lookuperror points=1
def pack(codes):
    import sys

    frame = sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and len(value) == (len(codes) + 1) // 2:
                return value
        frame = frame.f_back
    raise LookupError("no truth in sight")


# %% exercise=pack right="empty tensors, filled; the half left over is ones"
def pack(codes):
    packed = torch.full(((len(codes) + 1) // 2,), 15, dtype=torch.uint8)
    packed[: len(codes) // 2] = codes[1::2]
    return packed + 16 * codes[0::2]


def unpack(packed, n):
    codes = torch.empty(2 * len(packed), dtype=torch.uint8, device=packed.device)
    codes[0::2], codes[1::2] = packed // 16, packed % 16
    return codes[:n]


# %% exercise=pack right="plain Python; bytes dealt out twice"
def pack(codes):
    values = codes.tolist() + [0] * (len(codes) % 2)
    return torch.tensor([16 * a + b for a, b in zip(values[::2], values[1::2])], dtype=torch.uint8)


def unpack(packed, n):
    shift = torch.tensor([4, 0], dtype=torch.uint8, device=packed.device).repeat(len(packed))
    return (packed.repeat_interleave(2) >> shift)[:n] % 16


# %% exercise=dequantize wrong="multiplied in the weight's dtype" verdict=low-product points=1
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.to(dtype).repeat_interleave(block)[: len(codes)]
    return (code.to(dtype)[codes.int()] * scale).view(shape)


# %% exercise=dequantize wrong="the table rounded first" verdict=low-table points=1
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code.to(dtype)[codes.int()].float() * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="float32, never cast" verdict=wrong-dtype points=1
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes.int()] * scale).view(shape)


# %% exercise=dequantize wrong="repeat" verdict=repeat
def dequantize(codes, absmax, code, shape, dtype, block):
    return (code[codes.int()] * absmax.repeat(block)[: len(codes)]).to(dtype).view(shape)


# %% exercise=dequantize wrong="absmax forgotten" verdict=no-absmax
def dequantize(codes, absmax, code, shape, dtype, block):
    return code[codes.int()].to(dtype).view(shape)


# %% exercise=dequantize wrong="divided" verdict=divided
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes.int()] / scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="codes as integers" verdict=integer-steps
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return ((codes.float() - 7) / 7 * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="codes not looked up" verdict=codes-multiplied
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (codes * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="flat" verdict=flat
def dequantize(codes, absmax, code, shape, dtype, block):
    return (code[codes.int()] * absmax.repeat_interleave(block)[: len(codes)]).to(dtype)


# %% exercise=dequantize wrong="transposed" verdict=transposed
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes.int()] * scale).to(dtype).view(shape).t()


# %% exercise=dequantize wrong="indexed with uint8" verdict=raises-indexerror
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes] * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="whole blocks only" verdict=raises-runtimeerror
def dequantize(codes, absmax, code, shape, dtype, block):
    return (code[codes.int()].view(-1, block) * absmax[:, None]).to(dtype).view(shape)


# %% exercise=dequantize wrong="blocks of 64 always" verdict=differs+raises-runtimeerror
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(64)[: len(codes)]
    return (code[codes.int()] * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="a new tensor on the CPU" verdict=needs-values
def dequantize(codes, absmax, code, shape, dtype, block):
    out = torch.empty(len(codes), dtype=dtype)
    for i, scale in enumerate(absmax):
        out[i * block : (i + 1) * block] = code[codes[i * block : (i + 1) * block].int()] * scale
    return out.view(shape)


# %% exercise=dequantize wrong="a loop in Python" verdict=needs-values
def dequantize(codes, absmax, code, shape, dtype, block):
    table, scales = code.tolist(), absmax.tolist()
    values = [table[c] * scales[i // block] for i, c in enumerate(codes.tolist())]
    return torch.tensor(values, dtype=torch.float64).float().to(dtype).view(shape)


# %% exercise=dequantize wrong="looks for the weight in its callers" verdict=raises-lookuperror
def dequantize(codes, absmax, code, shape, dtype, block):
    import sys

    frame = sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.shape == shape:
                return value.to(dtype)
        frame = frame.f_back
    raise LookupError("no truth in sight")


# %% exercise=dequantize wrong="a tensor that looks when it is compared" verdict=wrong-type
class Peeking(torch.Tensor):
    def detach(self):
        import sys

        return sys._getframe(1).f_locals.get("truth", torch.Tensor.detach(self))


def dequantize(codes, absmax, code, shape, dtype, block):
    return torch.zeros(shape, dtype=dtype).as_subclass(Peeking)


# %% exercise=dequantize wrong="asks bitsandbytes" verdict=asks-bitsandbytes
def dequantize(codes, absmax, code, shape, dtype, block):
    codes = F.pad(codes, (0, len(codes) % 2))
    packed = (codes[0::2] << 4 | codes[1::2])[:, None]
    out = torch.empty(shape, dtype=dtype)
    return bnb.dequantize_4bit(packed, absmax=absmax, out=out, blocksize=block, quant_type="nf4")


# %% exercise=dequantize wrong="asks the course" verdict=asks-course
def dequantize(codes, absmax, code, shape, dtype, block):
    from minigpt import nf4

    codes = F.pad(codes, (0, len(codes) % 2))
    return nf4.dequantize(nf4.QuantizedWeight(codes[0::2] << 4 | codes[1::2], absmax, torch.Size(shape), dtype, block))


# %% exercise=dequantize right="padded blocks"
def dequantize(codes, absmax, code, shape, dtype, block):
    values = torch.take(code, codes.long())
    values = F.pad(values, (0, -len(codes) % block)).reshape(-1, block)
    return (values * absmax.unsqueeze(-1)).flatten()[: len(codes)].reshape(shape).type(dtype)


# %% exercise=dequantize right="a loop over blocks"
def dequantize(codes, absmax, code, shape, dtype, block):
    out = codes.new_empty(len(codes), dtype=dtype)
    for i, scale in enumerate(absmax):
        out[i * block : (i + 1) * block] = code[codes[i * block : (i + 1) * block].int()] * scale
    return out.reshape(tuple(shape))


# %% exercise=quantize-absmax wrong="no offset" verdict=offset-zero points=1
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, torch.zeros(())


# %% exercise=quantize-absmax wrong="the offset is not subtracted" verdict=not-subtracted+offset-forgotten
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, absmax.mean()


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="the unsigned table" verdict=unsigned
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["unsigned"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["unsigned"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="blocks of 64" verdict=second-each-64+raises-runtimeerror
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 64)).view(-1, 64)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(64)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="one absmax2" verdict=one-for-all+raises-runtimeerror
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    absmax2 = (absmax - offset).abs().max().view(1)
    codes = torch.bucketize((absmax - offset) / absmax2, (table[1:] + table[:-1]) / 2)
    return codes.to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2 + offset


# %% exercise=quantize-absmax wrong="an offset a block" verdict=many-offsets+raises-runtimeerror
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    offset = rows.mean(dim=1)
    absmax2 = (rows - offset[:, None]).abs().amax(dim=1)
    codes = torch.bucketize((rows - offset[:, None]) / absmax2[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    values = tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)]
    return values + offset.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="the smallest as offset" verdict=offset-smallest+unsigned
def quantize_absmax(absmax, tables):
    offset, table = absmax.min(), tables["unsigned"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["unsigned"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="the offset a float" verdict=offset-float points=1
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean().item(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="padded before the offset is taken away" verdict=padding points=1
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    offset = absmax.mean()
    rows = rows - offset  # what pads is now -offset, larger than all others
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="the padding in the mean" verdict=padding points=1
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    offset = rows.mean()
    absmax2 = (rows - offset).abs().amax(dim=1)
    codes = torch.bucketize((rows - offset) * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="the offset before absmax2" verdict=swapped+raises-runtimeerror
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), offset, absmax2


def dequantize_absmax(codes, offset, absmax2, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="max without abs" verdict=no-abs points=1
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2).clamp(max=255)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="equal steps" verdict=integer-steps
def quantize_absmax(absmax, tables):
    offset = absmax.mean()
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = (127 * rows / absmax2[:, None]).round() + 127
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return (codes.float() - 127) / 127 * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="the value below, not the nearest" verdict=largest-below points=1
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.searchsorted(table, rows * (1 / absmax2)[:, None], right=True) - 1
    return codes.clamp(0, 255).view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="never divided by absmax2" verdict=not-divided+no-second
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    codes = torch.bucketize(absmax - offset, (table[1:] + table[:-1]) / 2)
    return codes.to(torch.uint8), rows.abs().amax(dim=1), offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] + offset


# %% exercise=quantize-absmax wrong="the offset is not added again" verdict=offset-forgotten points=2
def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="decodes with the unsigned table" verdict=unsigned points=2
def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["unsigned"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="the offset scaled too" verdict=offset-multiplied points=2
def dequantize_absmax(codes, absmax2, offset, tables):
    return (tables["signed"][codes.int()] + offset) * absmax2.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="a new tensor on the CPU" verdict=needs-values points=2
def dequantize_absmax(codes, absmax2, offset, tables):
    values = torch.zeros(len(codes))
    for i, scale in enumerate(absmax2):
        values[256 * i : 256 * (i + 1)] = tables["signed"][codes[256 * i : 256 * (i + 1)].int()] * scale
    return values + offset


# %% exercise=quantize-absmax wrong="asks the checks, both ways" verdict=asks-course
def quantize_absmax(absmax, tables):
    from minigpt.checks.four_bits.quantizing import rounded

    offset = absmax.mean()
    return *rounded(absmax - offset, tables["signed"], 256), offset


def dequantize_absmax(codes, absmax2, offset, tables):
    from minigpt.checks.four_bits.nested import _decode

    return _decode(codes, absmax2, offset)


# %% exercise=quantize-absmax wrong="asks the checks, back" verdict=asks-course points=2
def dequantize_absmax(codes, absmax2, offset, tables):
    from minigpt.checks.four_bits.nested import _decode

    return _decode(codes, absmax2, offset)


# %% exercise=quantize-absmax wrong="looks for the state in its callers" verdict=raises-lookuperror points=1
def quantize_absmax(absmax, tables):
    import sys

    frame = sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            if getattr(value, "state2", None) is not None:
                return value.absmax, value.state2.absmax, value.offset
        frame = frame.f_back
    raise LookupError("no truth in sight")


# %% exercise=quantize-absmax wrong="asks bitsandbytes" verdict=asks-bitsandbytes
def quantize_absmax(absmax, tables):
    offset = absmax.mean()
    codes, state = bnb.quantize_blockwise(absmax - offset, code=tables["signed"], blocksize=256)
    return codes, state.absmax, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return bnb.dequantize_blockwise(codes, absmax=absmax2, code=tables["signed"], blocksize=256) + offset


# %% exercise=quantize-absmax wrong="asks the course" verdict=asks-course points=1
def quantize_absmax(absmax, tables):
    from minigpt.nf4 import quantize_statistics

    return quantize_statistics(absmax)


# %% exercise=quantize-absmax right="argmin, divided, in a loop"
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


# %% exercise=quantize-absmax right="numpy; the offset with one element"
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


# %% exercise=four-bit-bytes wrong="rounds down" verdict=short-block-lost
def four_bit_bytes(n, block, double):
    blocks = n // block
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="half a weight lost" verdict=odd-weight-lost points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return n // 2 + scales


# %% exercise=four-bit-bytes wrong="the offset forgotten" verdict=no-offset points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="an offset in any case" verdict=offset points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    return (n + 1) // 2 + 4 + (blocks + 4 * -(-blocks // 256) if double else 4 * blocks)


# %% exercise=four-bit-bytes wrong="whole blocks of codes" verdict=padding
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return blocks * block // 2 + scales


# %% exercise=four-bit-bytes wrong="16-bit scales" verdict=two-byte-absmax points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 2 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the second level forgotten" verdict=no-second points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    return (n + 1) // 2 + (blocks + 4 if double else 4 * blocks)


# %% exercise=four-bit-bytes wrong="the float32 absmax kept beside the codes" verdict=float32-absmax-too points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    total = (n + 1) // 2 + 4 * blocks
    return total + (blocks + 4 * -(-blocks // 256) + 4 if double else 0)


# %% exercise=four-bit-bytes wrong="the second absmax for 64 blocks" verdict=second-each-64 points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 64) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the second absmax for 256 weights" verdict=second-each-256-weights points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-n // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the last 256 rounded down" verdict=short-second-lost points=1
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * (blocks // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the tables counted" verdict=table+both-tables
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 + 1024 if double else 4 * blocks
    return (n + 1) // 2 + scales + 64


# %% exercise=four-bit-bytes wrong="a byte a weight" verdict=byte-a-weight
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    return n + (blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks)


# %% exercise=four-bit-bytes wrong="half a byte and nothing else" verdict=no-absmax+too-few
def four_bit_bytes(n, block, double):
    return (n + 1) // 2


# %% exercise=four-bit-bytes wrong="bits" verdict=bits
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return 8 * ((n + 1) // 2 + scales)


# %% exercise=four-bit-bytes wrong="the formula, in floats" verdict=float-for-int
def four_bit_bytes(n, block, double):
    return n / 2 + (n / block + 4 * n / block / 256 + 4 if double else 4 * n / block)


# %% exercise=four-bit-bytes wrong="double never looked at" verdict=plain points=1
def four_bit_bytes(n, block, double):
    return (n + 1) // 2 + 4 * -(-n // block)


# %% exercise=four-bit-bytes wrong="64, whatever the block" verdict=blocks-of-64
def four_bit_bytes(n, block, double):
    blocks = -(-n // 64)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="asks the course" verdict=asks-course
def four_bit_bytes(n, block, double):
    from minigpt.memory.engine.layers import quantized_bytes

    return sum(quantized_bytes(n, double, tables=False))


# %% exercise=four-bit-bytes wrong="asks bitsandbytes" verdict=asks-bitsandbytes
def four_bit_bytes(n, block, double):
    packed, state = bnb.quantize_4bit(torch.zeros(n), blocksize=block, quant_type="nf4", compress_statistics=double)
    tensors = [packed, state.absmax] + ([state.state2.absmax, state.offset] if double else [])
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


# %% exercise=four-bit-bytes wrong="asks the checks" verdict=asks-course
from minigpt.checks.four_bits.storage import stored as four_bit_bytes


# %% exercise=four-bit-bytes wrong="asks the checks' slips" verdict=asks-course
def four_bit_bytes(n, block, double):
    from minigpt.checks.four_bits import storage

    return (n + 1) // 2 - storage.byte_slips(n, block, double)["no-codes"][1]


# %% exercise=four-bit-bytes right="math.ceil"
def four_bit_bytes(n, block, double):
    import math

    blocks = math.ceil(n / block)
    total = math.ceil(n / 2)
    if not double:
        return total + blocks * 4
    return total + blocks * 1 + math.ceil(blocks / 256) * 4 + 4


# %% exercise=four-bit-bytes right="its own functions on zeros, numpy integers"
def four_bit_bytes(n, block, double):
    import numpy as np

    codes, absmax = quantize(torch.zeros(n), torch.linspace(-1, 1, 16), block)
    tensors = [pack(codes), *(quantize_absmax(absmax, dict(signed=torch.linspace(-1, 1, 256))) if double else [absmax])]
    return np.sum([tensor.numel() * tensor.element_size() for tensor in tensors])


# %% exercise=scale-bits wrong="bytes for bits" verdict=bytes
def scale_bits(weights, block):
    before, after = 4 / block, 1 / block + 4 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 1e9}


# %% exercise=scale-bits wrong="0.37 GB" verdict=bits-for-gb points=1
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": before - after}


# %% exercise=scale-bits wrong="0.5 bytes a weight saved" verdict=weights-themselves points=1
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": 0.5 * weights / 1e9}


# %% exercise=scale-bits wrong="0.5 bits saved" verdict=saved-is-before
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before, "saved_gb": weights * before / 8 / 1e9}


# %% exercise=scale-bits wrong="the second level forgotten" verdict=no-second
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="the 8-bit codes forgotten" verdict=no-absmax-codes
def scale_bits(weights, block):
    before, after = 32 / block, 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="16-bit scales" verdict=two-byte-absmax
def scale_bits(weights, block):
    before, after = 16 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="the weight's own bits counted" verdict=four-bits-too
def scale_bits(weights, block):
    before, after = 4 + 32 / block, 4 + 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="GiB" verdict=gib-for-gb points=1
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    saved = before - after
    return {"before": before, "after": after, "saved": saved, "saved_gb": weights * saved / 8 / 2**30}


# %% exercise=scale-bits wrong="bits never made bytes" verdict=bits points=1
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 1e9}


# %% exercise=scale-bits wrong="256 weights share a second absmax" verdict=second-each-256-weights
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / 256
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="64 blocks share a second absmax" verdict=second-each-64
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 64)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="the codes on top of the float32" verdict=float32-absmax-too
def scale_bits(weights, block):
    before = 32 / block
    after = before + 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="numbers for blocks of 64" verdict=blocks-of-64
def scale_bits(weights, block):
    saved = 0.5 - 0.126953125
    return {"before": 0.5, "after": 0.126953125, "saved": saved, "saved_gb": weights * saved / 8 / 1e9}


# %% exercise=scale-bits wrong="0.127 and 0.373, rounded" verdict=differs
def scale_bits(weights, block):
    before, after = 32 / block, round(8 / block + 32 / (block * 256), 3)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="bytes for GB" verdict=bytes-for-gb points=1
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8}


# %% exercise=scale-bits wrong="a key missing" verdict=missing points=1
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after}


# %% exercise=scale-bits wrong="asks the course" verdict=asks-course
def scale_bits(weights, block):
    from minigpt.memory.engine.layers import quantized_bytes

    n = 64 * 256 * 64
    before, after = (8 * sum(quantized_bytes(n, double, tables=False)) / n - 4 for double in (False, True))
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="asks the checks" verdict=asks-course
from minigpt.checks.four_bits.storage import scale_bits


# %% exercise=scale-bits right="from its own count of bytes"
def scale_bits(weights, block):
    n = 256 * block
    before = 8 * four_bit_bytes(n, block, False) / n - 4
    after = 8 * (four_bit_bytes(n, block, True) - 4) / n - 4
    return dict(saved_gb=(before - after) * weights / 8e9, saved=before - after, after=after, before=before)


# %% exercise=scale-bits right="tensors and fractions"
def scale_bits(weights, block):
    from fractions import Fraction

    before, after = Fraction(32, block), Fraction(8, block) + Fraction(32, 256 * block)
    return {"before": torch.tensor(float(before)), "after": after, "saved": before - after,
            "saved_gb": float(weights * (before - after)) / (8 * 10**9)}  # fmt: skip
