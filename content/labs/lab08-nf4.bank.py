# Wrong and right answers to lab 08, for tools/bank.py. Never released.
# ruff: noqa: E402, F811, F821

# %% exercise=codebook wrong="the ends at 0 and 1, torch" says="gives NaN or infinity: .*the quantile of 0 or of 1"
def codebook(end):
    above = torch.special.ndtri(torch.linspace(0.5, 1, 9)[1:])
    below = torch.special.ndtri(torch.linspace(0, 0.5, 8)[:-1])
    values = torch.cat([below, torch.zeros(1), above])
    return values / values.max()


# %% exercise=codebook wrong="the ends at 0 and 1, statistics" says="StatisticsError(.|\n)*infinite; stop at end"
def codebook(end):
    above = [quantile(0.5 + 0.5 * k / 8) for k in range(1, 9)]
    below = [quantile(0.5 - 0.5 * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above])) / above[-1]


# %% exercise=codebook wrong="symmetric, zero twice" says="15 different values(.|\n)*is zero itself"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 7) for k in range(8)]
    return torch.tensor(sorted([*above, *(-value for value in above)])) / above[-1]


# %% exercise=codebook wrong="seven on each side" says="seven on each side and zero"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*above, 0.0, *(-value for value in above)])) / above[-1]


# %% exercise=codebook wrong="eight on each side" says="one side has seven"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    return torch.tensor(sorted([*above, 0.0, *(-value for value in above)])) / above[-1]


# %% exercise=codebook wrong="sixteen equal shares" says="zero is not among the values"
def codebook(end):
    values = torch.tensor([quantile((i + 0.5) / 16) for i in range(16)])
    return values / values.max()


# %% exercise=codebook wrong="sixteen equal steps from end to end" says="zero is not among the values"
def codebook(end):
    values = torch.special.ndtri(torch.linspace(1 - end, end, 16, dtype=torch.float64))
    return (values / values.max()).float()


# %% exercise=codebook wrong="never divided" says="not divided by the largest"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above]))


# %% exercise=codebook wrong="the sides swapped" says="it is the other way round"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    below = [-quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    return torch.tensor(sorted([*below, 0.0, *above])) / above[-1]


# %% exercise=codebook wrong="equal steps of the value" says="the steps are equal in probability"
def codebook(end):
    return torch.cat([torch.linspace(-1, 0, 8), torch.linspace(0, 1, 9)[1:]])


# %% exercise=codebook wrong="the larger first" says="not in ascending order"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(8, 0, -1)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor([*above, 0.0, *below]) / above[0]


# %% exercise=codebook wrong="steps of a ninth and an eighth" says="eight steps, and seven, lead to the end itself"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 9) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above])) / above[-1]


# %% exercise=codebook wrong="float64" says="dtype is float64; float32 is asked for"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return torch.tensor(sorted([*below, 0.0, *above]), dtype=torch.float64) / above[-1]


# %% exercise=codebook wrong="a list" says="is of type list; a torch.Tensor"
def codebook(end):
    above = [quantile(0.5 + (end - 0.5) * k / 8) for k in range(1, 9)]
    below = [-quantile(0.5 + (end - 0.5) * k / 7) for k in range(1, 8)]
    return [value / above[-1] for value in sorted([*below, 0.0, *above])]


# %% exercise=codebook wrong="the published table, typed" says="the end is 0.967708, whatever is asked for"
def codebook(end):
    return torch.tensor([
        -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0, 0.0795803, 0.1609302,
        0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
    ])  # fmt: skip


# %% exercise=codebook wrong="asks bitsandbytes" says="asks bitsandbytes for the result"
def codebook(end):
    return bnb.get_4bit_type("nf4", device="cpu")


# %% exercise=codebook wrong="asks the course" says="asks the course's own arithmetic"
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


# %% exercise=quantize wrong="a tie takes the upper code" says="takes the upper; bitsandbytes takes the lower"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2, right=True)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="w / absmax" says="take the reciprocal first"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows / absmax.clamp(min=1e-38)[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="float64" says="(float64|take the reciprocal first)"
def quantize(weight, code, block):
    flat = weight.reshape(-1).double()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows / absmax.clamp(min=1e-38)[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]).double() / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax.float()


# %% exercise=quantize wrong="absmax in the weight's dtype" says="absmax: the dtype is bfloat16; float32"
def quantize(weight, code, block):
    flat = weight.reshape(-1)
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows.float() * (1 / absmax.float().clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="x in the weight's dtype" says="x is computed in bfloat16; make weight and absmax float32"
def quantize(weight, code, block):
    flat = weight.reshape(-1)
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-4))[:, None]
    codes = torch.bucketize(x.float(), (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax.float()


# %% exercise=quantize wrong="absmax of the whole tensor" says="absmax: .*one for the whole tensor"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = flat.abs().max().view(1)
    codes = torch.bucketize(flat * (1 / absmax), (code[1:] + code[:-1]) / 2)
    return codes.to(torch.uint8), absmax


# %% exercise=quantize wrong="absmax of the whole tensor, for each block" says="absmax of the whole tensor"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = flat.abs().max().repeat(-(-len(flat) // block))
    codes = torch.bucketize(flat * (1 / absmax[0]), (code[1:] + code[:-1]) / 2)
    return codes.to(torch.uint8), absmax


# %% exercise=quantize wrong="one absmax a row" says="one for each row of the matrix"
def quantize(weight, code, block):
    rows = weight.float().view(weight.shape[0], -1)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="blocks down the columns" says="wrong axis, down the columns"
def quantize(weight, code, block):
    flat = weight.t().reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="strided blocks" says="the blocks are strided"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(block, -1)
    absmax = rows.abs().amax(dim=0)
    x = rows * (1 / absmax.clamp(min=1e-38))
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="max without abs" says="the largest absolute value is asked for"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="the last block dropped" says="the last, short block has none"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = flat[: len(flat) // block * block].view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="whole blocks only" says="quantize fails with RuntimeError(.|\n)*the last may be short"
def quantize(weight, code, block):
    rows = weight.float().view(-1, block)
    absmax = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="padding returned" says="what pads the last block is in it"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return torch.bucketize(x, (code[1:] + code[:-1]) / 2).view(-1).to(torch.uint8), absmax


# %% exercise=quantize wrong="an epsilon" says="something is added to it, or it is clamped"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1) + 1e-8
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a clamp that small weights feel" says="something is added to it, or it is clamped"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1).clamp(min=1e-6)
    codes = torch.bucketize(rows * (1 / absmax)[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a clamp at 1e-8 in the division" says="weights around 1e-30: something is added"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-8))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a clamp at 1e-12 in the division" says="or it is clamped, and a block this small feels"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-12))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="plus 1e-12 in the division" says="something is added to absmax before 1 / absmax"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / (absmax + 1e-12))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="plus 1e-20 in the division" says="something is added to absmax before 1 / absmax"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / (absmax + 1e-20))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="the value below, not the nearest" says="the largest value below x is taken"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = (torch.bucketize(x, code, right=True) - 1).clamp(0, len(code) - 1)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="bucketize into the table itself" says="the smallest value above x is taken"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return torch.bucketize(x, code).clamp(max=15).view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="argmin without abs" says="argmin without abs: .* the largest value"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return (x.view(-1)[: len(flat), None] - code).argmin(dim=1).to(torch.uint8), absmax


# %% exercise=quantize wrong="half the range" says="half of a block's range"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = (rows.amax(dim=1) - rows.amin(dim=1)) / 2
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="absmax first" says="quantize returns \(absmax, codes\); \(codes, absmax\) is asked for"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return absmax, codes.view(-1)[: len(flat)].to(torch.uint8)


# %% exercise=quantize wrong="integers" says="in equal steps, as for integers"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return ((7 * x).round() + 7).view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="never divided by absmax" says="not divided by absmax"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = F.pad(flat, (0, -len(flat) % block)).view(-1, block).abs().amax(dim=1)
    return torch.bucketize(flat, (code[1:] + code[:-1]) / 2).to(torch.uint8), absmax


# %% exercise=quantize wrong="repeat, not repeat_interleave" says="absmax is dealt out with repeat"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    absmax = F.pad(flat, (0, -len(flat) % block)).view(-1, block).abs().amax(dim=1)
    x = flat * (1 / absmax.clamp(min=1e-38)).repeat(block)[: len(flat)]
    return torch.bucketize(x, (code[1:] + code[:-1]) / 2).to(torch.uint8), absmax


# %% exercise=quantize wrong="the standard deviation" says="the standard deviation of a block"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scale = rows.std(dim=1)
    codes = torch.bucketize(rows / scale[:, None], (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), scale


# %% exercise=quantize wrong="64, whatever the block" says="one for each 64 weights"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % 64)).view(-1, 64)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="NF4, whatever the table" says="a table of 15 values"
def quantize(weight, code, block):
    if len(code) != 16:
        code = torch.special.ndtri(torch.linspace(0.04, 0.96, 16)) / 1.75
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="int64 codes" says="codes: the dtype is int64; uint8"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax.clamp(min=1e-38))[:, None]
    return torch.bucketize(x, (code[1:] + code[:-1]) / 2).view(-1)[: len(flat)], absmax


# %% exercise=quantize wrong="zeros become ones" says="it does not decode to zeros"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax)[:, None]
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    absmax = torch.where(absmax == 0, 1.0, absmax)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="a NaN for an absmax of zero" says="quantize gives NaN or infinity: from 0 \* \(1 / 0\)"
def quantize(weight, code, block):
    flat = weight.reshape(-1).float()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    x = rows * (1 / absmax)[:, None]
    absmax = absmax + 0 * x.sum(dim=1)
    codes = torch.bucketize(x, (code[1:] + code[:-1]) / 2)
    return codes.view(-1)[: len(flat)].to(torch.uint8), absmax


# %% exercise=quantize wrong="scales the weight in place" says="changes its arguments"
def quantize(weight, code, block):
    flat = weight.view(-1).float()
    absmax = F.pad(flat, (0, -len(flat) % block)).view(-1, block).abs().amax(dim=1)
    flat *= (1 / absmax.clamp(min=1e-38)).repeat_interleave(block)[: len(flat)]
    return torch.bucketize(flat, (code[1:] + code[:-1]) / 2).to(torch.uint8), absmax


# %% exercise=quantize wrong="asks bitsandbytes" says="asks bitsandbytes for the result"
def quantize(weight, code, block):
    packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    return torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], 1).view(-1)[: weight.numel()], state.absmax


# %% exercise=quantize wrong="asks bitsandbytes' kernel, and swallows the no" says="asks bitsandbytes for the result"
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


# %% exercise=quantize wrong="asks the course" says="asks the course's own arithmetic"
def quantize(weight, code, block):
    from minigpt import nf4

    made = nf4.quantize(weight, block)
    return torch.stack([made.packed >> 4, made.packed & 15], 1).view(-1)[: weight.numel()], made.absmax


# %% exercise=quantize wrong="asks the checks" says="asks the course's own arithmetic"
from minigpt.checks.quantizing import rounded as quantize


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


# %% exercise=pack wrong="low nibble first" says="the even code is in the low half"
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[1::2] << 4 | codes[0::2]


def unpack(packed, n):
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[:n]


# %% exercise=pack wrong="unpacks the low half first" says="unpack, .*the low half of a byte comes first"
def unpack(packed, n):
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[:n]


# %% exercise=pack wrong="the first half above the second" says="the first half of the codes is in the high halves"
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[: len(codes) // 2] << 4 | codes[len(codes) // 2 :]


def unpack(packed, n):
    return torch.cat([packed >> 4, packed & 15])[:n]


# %% exercise=pack wrong="unpacks all high halves first" says="all high halves come first"
def unpack(packed, n):
    return torch.cat([packed >> 4, packed & 15])[:n]


# %% exercise=pack wrong="odd numbers forgotten" says="pack fails with RuntimeError(.|\n)*an odd number of codes"
def pack(codes):
    return codes[0::2] << 4 | codes[1::2]


# %% exercise=pack wrong="the odd code dropped" says="the last of an odd number of codes is lost"
def pack(codes):
    codes = codes[: len(codes) // 2 * 2].view(-1, 2)
    return codes[:, 0] << 4 | codes[:, 1]


# %% exercise=pack wrong="the half byte left over is returned" says="the half byte that is left over is in it"
def unpack(packed, n):
    return torch.stack([packed >> 4, packed & 15], dim=1).view(-1)


# %% exercise=pack wrong="no shift" says="the even code is not shifted"
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[0::2] | codes[1::2]


# %% exercise=pack wrong="the plus first" says="binds more strongly than <<"
def pack(codes):
    even, odd = F.pad(codes, (0, len(codes) % 2)).view(-1, 2).unbind(1)
    return even << 4 + odd


# %% exercise=pack wrong="no mask" says="mask it: byte & 15"
def unpack(packed, n):
    return torch.stack([packed >> 4, packed], dim=1).view(-1)[:n]


# %% exercise=pack wrong="nothing packed" says="one code a byte: nothing is packed"
def pack(codes):
    return codes.clone()


def unpack(packed, n):
    return packed[:n]


# %% exercise=pack wrong="int64 bytes" says="the dtype is int64; uint8"
def pack(codes):
    codes = F.pad(codes.long(), (0, len(codes) % 2))
    return codes[0::2] * 16 + codes[1::2]


def unpack(packed, n):
    return torch.stack([packed // 16, packed % 16], dim=1).view(-1)[:n]


# %% exercise=pack wrong="a column, as bitsandbytes shapes it" says="make it flat"
def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return (codes[0::2] << 4 | codes[1::2])[:, None]


# %% exercise=pack wrong="packs into its argument" says="changes its arguments"
def pack(codes):
    codes[0::2] <<= 4
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[0::2] | codes[1::2]


# %% exercise=pack wrong="a new tensor on the CPU" says="unpack fails with tensors on the meta device"
def unpack(packed, n):
    codes = torch.empty(2 * len(packed), dtype=torch.uint8)
    codes[0::2], codes[1::2] = packed // 16, packed % 16
    return codes[:n]


# %% exercise=pack wrong="numpy, which needs a CPU" says="unpack fails with .*meta(.|\n)*not with numpy"
def unpack(packed, n):
    import numpy as np

    bytes_ = packed.numpy()
    return torch.from_numpy(np.stack([bytes_ >> 4, bytes_ & 0x0F], axis=-1).ravel()[:n].copy())


# %% exercise=pack wrong="asks the checks" says="asks the course's own arithmetic"
from minigpt.checks.quantizing import unpacked as unpack


def pack(codes):
    codes = F.pad(codes, (0, len(codes) % 2))
    return codes[0::2] << 4 | codes[1::2]


# %% exercise=pack wrong="looks for the bytes in its callers" says="LookupError: no truth in sight"
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


# %% exercise=dequantize wrong="multiplied in the weight's dtype" says="the product is taken in bfloat16"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.to(dtype).repeat_interleave(block)[: len(codes)]
    return (code.to(dtype)[codes.int()] * scale).view(shape)


# %% exercise=dequantize wrong="the table rounded first" says="the table is rounded to bfloat16 first"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code.to(dtype)[codes.int()].float() * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="float32, never cast" says="its dtype is torch.float32; torch.bfloat16 is asked for"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes.int()] * scale).view(shape)


# %% exercise=dequantize wrong="repeat" says="absmax is dealt out with repeat"
def dequantize(codes, absmax, code, shape, dtype, block):
    return (code[codes.int()] * absmax.repeat(block)[: len(codes)]).to(dtype).view(shape)


# %% exercise=dequantize wrong="absmax forgotten" says="absmax is missing"
def dequantize(codes, absmax, code, shape, dtype, block):
    return code[codes.int()].to(dtype).view(shape)


# %% exercise=dequantize wrong="divided" says="divided by absmax"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes.int()] / scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="codes as integers" says="read as steps of 1/7"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return ((codes.float() - 7) / 7 * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="codes not looked up" says="look them up in the table"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (codes * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="flat" says="It is flat"
def dequantize(codes, absmax, code, shape, dtype, block):
    return (code[codes.int()] * absmax.repeat_interleave(block)[: len(codes)]).to(dtype)


# %% exercise=dequantize wrong="transposed" says="it is transposed"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes.int()] * scale).to(dtype).view(shape).t()


# %% exercise=dequantize wrong="indexed with uint8" says="A uint8 index is taken for a mask"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(block)[: len(codes)]
    return (code[codes] * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="whole blocks only" says="dequantize fails with RuntimeError(.|\n)*the last may be short"
def dequantize(codes, absmax, code, shape, dtype, block):
    return (code[codes.int()].view(-1, block) * absmax[:, None]).to(dtype).view(shape)


# %% exercise=dequantize wrong="blocks of 64 always" says="RuntimeError(.|\n)*leaves one of the two shorter"
def dequantize(codes, absmax, code, shape, dtype, block):
    scale = absmax.repeat_interleave(64)[: len(codes)]
    return (code[codes.int()] * scale).to(dtype).view(shape)


# %% exercise=dequantize wrong="a new tensor on the CPU" says="dequantize fails with tensors on the meta device"
def dequantize(codes, absmax, code, shape, dtype, block):
    out = torch.empty(len(codes), dtype=dtype)
    for i, scale in enumerate(absmax):
        out[i * block : (i + 1) * block] = code[codes[i * block : (i + 1) * block].int()] * scale
    return out.view(shape)


# %% exercise=dequantize wrong="a loop in Python" says="dequantize fails with tensors on the meta device(.|\n)*.tolist"
def dequantize(codes, absmax, code, shape, dtype, block):
    table, scales = code.tolist(), absmax.tolist()
    values = [table[c] * scales[i // block] for i, c in enumerate(codes.tolist())]
    return torch.tensor(values, dtype=torch.float64).float().to(dtype).view(shape)


# %% exercise=dequantize wrong="looks for the weight in its callers" says="LookupError: no truth in sight"
def dequantize(codes, absmax, code, shape, dtype, block):
    import sys

    frame = sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.shape == shape:
                return value.to(dtype)
        frame = frame.f_back
    raise LookupError("no truth in sight")


# %% exercise=dequantize wrong="a tensor that looks when it is compared" says="a torch.Tensor is asked for"
class Peeking(torch.Tensor):
    def detach(self):
        import sys

        return sys._getframe(1).f_locals.get("truth", torch.Tensor.detach(self))


def dequantize(codes, absmax, code, shape, dtype, block):
    return torch.zeros(shape, dtype=dtype).as_subclass(Peeking)


# %% exercise=dequantize wrong="asks bitsandbytes" says="asks bitsandbytes for the result"
def dequantize(codes, absmax, code, shape, dtype, block):
    codes = F.pad(codes, (0, len(codes) % 2))
    packed = (codes[0::2] << 4 | codes[1::2])[:, None]
    out = torch.empty(shape, dtype=dtype)
    return bnb.dequantize_4bit(packed, absmax=absmax, out=out, blocksize=block, quant_type="nf4")


# %% exercise=dequantize wrong="asks the course" says="asks the course's own arithmetic"
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


# %% exercise=quantize-absmax wrong="no offset" says="offset: nothing is subtracted"
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, torch.zeros(())


# %% exercise=quantize-absmax wrong="the offset is not subtracted" says="the offset is not subtracted before"
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, absmax.mean()


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="the unsigned table" says="they point into the unsigned table"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["unsigned"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["unsigned"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="blocks of 64" says="absmax2: .*one for each 64; 256 absmax values share one"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 64)).view(-1, 64)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(64)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="one absmax2" says="absmax2: .*one for the whole tensor; 256 share one"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    absmax2 = (absmax - offset).abs().max().view(1)
    codes = torch.bucketize((absmax - offset) / absmax2, (table[1:] + table[:-1]) / 2)
    return codes.to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2 + offset


# %% exercise=quantize-absmax wrong="an offset a block" says="one offset serves the whole tensor"
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


# %% exercise=quantize-absmax wrong="the smallest as offset" says="the smallest absmax; the mean is asked for"
def quantize_absmax(absmax, tables):
    offset, table = absmax.min(), tables["unsigned"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["unsigned"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="the offset a float" says="a float; keep it a tensor"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean().item(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="padded before the offset is taken away" says="subtract first, then pad with zeros"
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    offset = absmax.mean()
    rows = rows - offset  # what pads is now -offset, larger than all others
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="the padding in the mean" says="offset: what pads the last block is in the mean"
def quantize_absmax(absmax, tables):
    table = tables["signed"]
    rows = F.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    offset = rows.mean()
    absmax2 = (rows - offset).abs().amax(dim=1)
    codes = torch.bucketize((rows - offset) * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="the offset before absmax2" says="\(codes, offset, absmax2\) is returned"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), offset, absmax2


def dequantize_absmax(codes, offset, absmax2, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="max without abs" says="absmax2: the largest value; the largest absolute value"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.amax(dim=1)
    codes = torch.bucketize(rows * (1 / absmax2)[:, None], (table[1:] + table[:-1]) / 2).clamp(max=255)
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="equal steps" says="equal steps, as for integers"
def quantize_absmax(absmax, tables):
    offset = absmax.mean()
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = (127 * rows / absmax2[:, None]).round() + 127
    return codes.view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return (codes.float() - 127) / 127 * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="the value below, not the nearest" says="the largest value below is taken"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    absmax2 = rows.abs().amax(dim=1)
    codes = torch.searchsorted(table, rows * (1 / absmax2)[:, None], right=True) - 1
    return codes.clamp(0, 255).view(-1)[: len(absmax)].to(torch.uint8), absmax2, offset


# %% exercise=quantize-absmax wrong="never divided by absmax2" says="not divided by absmax2"
def quantize_absmax(absmax, tables):
    offset, table = absmax.mean(), tables["signed"]
    rows = F.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
    codes = torch.bucketize(absmax - offset, (table[1:] + table[:-1]) / 2)
    return codes.to(torch.uint8), rows.abs().amax(dim=1), offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] + offset


# %% exercise=quantize-absmax wrong="the offset is not added again" says="restored: the offset is not added again"
def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["signed"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="decodes with the unsigned table" says="looked up in the unsigned table"
def dequantize_absmax(codes, absmax2, offset, tables):
    return tables["unsigned"][codes.int()] * absmax2.repeat_interleave(256)[: len(codes)] + offset


# %% exercise=quantize-absmax wrong="the offset scaled too" says="the offset is multiplied too"
def dequantize_absmax(codes, absmax2, offset, tables):
    return (tables["signed"][codes.int()] + offset) * absmax2.repeat_interleave(256)[: len(codes)]


# %% exercise=quantize-absmax wrong="a new tensor on the CPU" says="dequantize_absmax fails with .* the meta device"
def dequantize_absmax(codes, absmax2, offset, tables):
    values = torch.zeros(len(codes))
    for i, scale in enumerate(absmax2):
        values[256 * i : 256 * (i + 1)] = tables["signed"][codes[256 * i : 256 * (i + 1)].int()] * scale
    return values + offset


# %% exercise=quantize-absmax wrong="asks the checks, both ways" says="asks the course's own arithmetic"
def quantize_absmax(absmax, tables):
    from minigpt.checks.quantizing import rounded

    offset = absmax.mean()
    return *rounded(absmax - offset, tables["signed"], 256), offset


def dequantize_absmax(codes, absmax2, offset, tables):
    from minigpt.checks.nested import _decode

    return _decode(codes, absmax2, offset)


# %% exercise=quantize-absmax wrong="asks the checks, back" says="asks the course's own arithmetic"
def dequantize_absmax(codes, absmax2, offset, tables):
    from minigpt.checks.nested import _decode

    return _decode(codes, absmax2, offset)


# %% exercise=quantize-absmax wrong="looks for the state in its callers" says="LookupError: no truth in sight"
def quantize_absmax(absmax, tables):
    import sys

    frame = sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            if getattr(value, "state2", None) is not None:
                return value.absmax, value.state2.absmax, value.offset
        frame = frame.f_back
    raise LookupError("no truth in sight")


# %% exercise=quantize-absmax wrong="asks bitsandbytes" says="asks bitsandbytes for the result"
def quantize_absmax(absmax, tables):
    offset = absmax.mean()
    codes, state = bnb.quantize_blockwise(absmax - offset, code=tables["signed"], blocksize=256)
    return codes, state.absmax, offset


def dequantize_absmax(codes, absmax2, offset, tables):
    return bnb.dequantize_blockwise(codes, absmax=absmax2, code=tables["signed"], blocksize=256) + offset


# %% exercise=quantize-absmax wrong="asks the course" says="asks the course's own arithmetic"
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


# %% exercise=four-bit-bytes wrong="rounds down" says="the last, short block has an absmax too"
def four_bit_bytes(n, block, double):
    blocks = n // block
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="half a weight lost" says="the last of an odd number of weights is lost"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return n // 2 + scales


# %% exercise=four-bit-bytes wrong="the offset forgotten" says="the offset is missing"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="an offset in any case" says="without double quantization there is none"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    return (n + 1) // 2 + 4 + (blocks + 4 * -(-blocks // 256) if double else 4 * blocks)


# %% exercise=four-bit-bytes wrong="whole blocks of codes" says="the codes are padded to whole blocks"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return blocks * block // 2 + scales


# %% exercise=four-bit-bytes wrong="16-bit scales" says="absmax in 2 bytes; it is a float32"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 2 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the second level forgotten" says="the second absmax is missing"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    return (n + 1) // 2 + (blocks + 4 if double else 4 * blocks)


# %% exercise=four-bit-bytes wrong="the float32 absmax kept beside the codes" says="their 8-bit codes replace them"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    total = (n + 1) // 2 + 4 * blocks
    return total + (blocks + 4 * -(-blocks // 256) + 4 if double else 0)


# %% exercise=four-bit-bytes wrong="the second absmax for 64 blocks" says="for each 64 blocks; 256 share one"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 64) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the second absmax for 256 weights" says="for each 256 blocks there is one"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-n // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the last 256 rounded down" says="short block of 256 has a second absmax too"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * (blocks // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="the tables counted" says="the 16 values of the table are counted"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 + 1024 if double else 4 * blocks
    return (n + 1) // 2 + scales + 64


# %% exercise=four-bit-bytes wrong="a byte a weight" says="one byte a weight: two codes share a byte"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    return n + (blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks)


# %% exercise=four-bit-bytes wrong="half a byte and nothing else" says="the absmax values are missing"
def four_bit_bytes(n, block, double):
    return (n + 1) // 2


# %% exercise=four-bit-bytes wrong="bits" says="8 times too much: those are bits"
def four_bit_bytes(n, block, double):
    blocks = -(-n // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return 8 * ((n + 1) // 2 + scales)


# %% exercise=four-bit-bytes wrong="the formula, in floats" says="is a float; a whole number"
def four_bit_bytes(n, block, double):
    return n / 2 + (n / block + 4 * n / block / 256 + 4 if double else 4 * n / block)


# %% exercise=four-bit-bytes wrong="double never looked at" says="that is without double quantization"
def four_bit_bytes(n, block, double):
    return (n + 1) // 2 + 4 * -(-n // block)


# %% exercise=four-bit-bytes wrong="64, whatever the block" says="blocks of 64 are counted, whatever is asked for"
def four_bit_bytes(n, block, double):
    blocks = -(-n // 64)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return (n + 1) // 2 + scales


# %% exercise=four-bit-bytes wrong="asks the course" says="asks the course's own arithmetic"
def four_bit_bytes(n, block, double):
    from minigpt.memory.engine.layers import quantized_bytes

    return sum(quantized_bytes(n, double, tables=False))


# %% exercise=four-bit-bytes wrong="asks bitsandbytes" says="asks bitsandbytes for the result"
def four_bit_bytes(n, block, double):
    packed, state = bnb.quantize_4bit(torch.zeros(n), blocksize=block, quant_type="nf4", compress_statistics=double)
    tensors = [packed, state.absmax] + ([state.state2.absmax, state.offset] if double else [])
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


# %% exercise=four-bit-bytes wrong="asks the checks" says="asks the course's own arithmetic"
from minigpt.checks.four_bits import stored as four_bit_bytes


# %% exercise=four-bit-bytes wrong="asks the checks' slips" says="asks the course's own arithmetic"
def four_bit_bytes(n, block, double):
    from minigpt.checks import four_bits

    return (n + 1) // 2 - four_bits.byte_slips(n, block, double)["the codes themselves are missing"]


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


# %% exercise=scale-bits wrong="bytes for bits" says="before: that is in bytes a weight; bits are asked for"
def scale_bits(weights, block):
    before, after = 4 / block, 1 / block + 4 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 1e9}


# %% exercise=scale-bits wrong="0.37 GB" says="those are bits a weight, not GB"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": before - after}


# %% exercise=scale-bits wrong="0.5 bytes a weight saved" says="half a byte a weight is the weight itself"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": 0.5 * weights / 1e9}


# %% exercise=scale-bits wrong="0.5 bits saved" says="saved: that is what the scales cost before"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before, "saved_gb": weights * before / 8 / 1e9}


# %% exercise=scale-bits wrong="the second level forgotten" says="after: the second absmax is missing"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="the 8-bit codes forgotten" says="after: the codes of absmax are missing"
def scale_bits(weights, block):
    before, after = 32 / block, 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="16-bit scales" says="before: an absmax is booked in 16 bits"
def scale_bits(weights, block):
    before, after = 16 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="the weight's own bits counted" says="before: the four bits of the weight are in it"
def scale_bits(weights, block):
    before, after = 4 + 32 / block, 4 + 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="GiB" says="off by exactly 1.0737: GiB where GB was asked"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    saved = before - after
    return {"before": before, "after": after, "saved": saved, "saved_gb": weights * saved / 8 / 2**30}


# %% exercise=scale-bits wrong="bits never made bytes" says="8 times too much: those are bits"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 1e9}


# %% exercise=scale-bits wrong="256 weights share a second absmax" says="after: 256 weights share .*; it is 256 blocks"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / 256
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="64 blocks share a second absmax" says="64 blocks share a second absmax; it is 256"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 64)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="the codes on top of the float32" says="after: the float32 absmax is still in it"
def scale_bits(weights, block):
    before = 32 / block
    after = before + 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="numbers for blocks of 64" says="blocks of 64, whatever is asked for"
def scale_bits(weights, block):
    saved = 0.5 - 0.126953125
    return {"before": 0.5, "after": 0.126953125, "saved": saved, "saved_gb": weights * saved / 8 / 1e9}


# %% exercise=scale-bits wrong="0.127 and 0.373, rounded" says="after: it differs by up to 4.69e-05"
def scale_bits(weights, block):
    before, after = 32 / block, round(8 / block + 32 / (block * 256), 3)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="bytes for GB" says="saved_gb: that is in bytes; GB are asked for"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8}


# %% exercise=scale-bits wrong="a key missing" says="saved_gb is missing"
def scale_bits(weights, block):
    before, after = 32 / block, 8 / block + 32 / (block * 256)
    return {"before": before, "after": after, "saved": before - after}


# %% exercise=scale-bits wrong="asks the course" says="asks the course's own arithmetic"
def scale_bits(weights, block):
    from minigpt.memory.engine.layers import quantized_bytes

    n = 64 * 256 * 64
    before, after = (8 * sum(quantized_bytes(n, double, tables=False)) / n - 4 for double in (False, True))
    return {"before": before, "after": after, "saved": before - after, "saved_gb": weights * (before - after) / 8 / 1e9}


# %% exercise=scale-bits wrong="asks the checks" says="asks the course's own arithmetic"
from minigpt.checks.four_bits import scale_bits


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
