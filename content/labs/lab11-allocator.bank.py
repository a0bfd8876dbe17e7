# Wrong and right answers to lab 11, as tools/bank_entries.py reads them. Never released.

# %% sizes
# wrong: not rounded -> not-rounded, keeps 3
#     `(nbytes + 511) // 512 * 512` => `nbytes`
# wrong: rounded down -> rounded-down, keeps 3
#     `(nbytes + 511) // 512 * 512` => `nbytes // 512 * 512`
# wrong: always one more -> one-too-many, keeps 3
#     `(nbytes + 511) // 512 * 512` => `(nbytes // 512 + 1) * 512`
# wrong: to the nearest -> nearest, keeps 3
#     `(nbytes + 511) // 512 * 512` => `(nbytes + 256) // 512 * 512`
# wrong: multiples of 1024 where it is large -> too-many, keeps 3
#     `(nbytes + 511) // 512 * 512` => `(nbytes + 511) // 512 * 512 if nbytes < MIB else -(-nbytes // 1024) * 1024`
# wrong: a float -> float-for-int, keeps 3
#     `(nbytes + 511) // 512 * 512` => `(nbytes + 511) // 512 * 512.0`
# wrong: multiples of 256 -> other-multiple, keeps 3
#     `(nbytes + 511) // 512 * 512` => `(nbytes + 255) // 256 * 256`
# wrong: exactly 1 MiB is large -> edge+large-rule, keeps 2
#     `"small" if size <= MIB else "large"` => `"small" if size < MIB else "large"`
# wrong: a decimal MB -> decimal, keeps 3
#     `"small" if size <= MIB else "large"` => `"small" if size <= 1_000_000 or size == MIB else "large"`
# wrong: 10 MiB takes 20 -> ten-takes-twenty, keeps 3
#     `size < 10 * MIB` => `size <= 10 * MIB`
# wrong: less than 10 MiB has its own segment -> own-size, keeps 3
#     `return 20 * MIB` => `return (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB`
# wrong: 10 MiB for less than 10 -> ten, keeps 3
#     `return 20 * MIB` => `return 10 * MIB`
# wrong: segments of any size -> not-a-multiple, keeps 3
#     `(size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB` => `size`
# wrong: a multiple too many -> one-too-many, keeps 3
#     `(size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB` => `(size // (2 * MIB) + 1) * 2 * MIB`
# wrong: 2 MiB for all -> two, keeps 3
#     `return 20 * MIB` => `return 2 * MIB`
# wrong: splits in any case -> edge, keeps 3
#     `rest if pool_of(size) == "small" or rest > MIB else 0` => `rest`
# wrong: 1 MiB is split off -> edge, keeps 3
#     `rest > MIB` => `rest >= MIB`
# wrong: the large pool's rule for both -> large-rule, keeps 3
#     `pool_of(size) == "small" or rest > MIB` => `rest > MIB`
# wrong: never splits -> never-split, keeps 3
#     `rest if pool_of(size) == "small" or rest > MIB else 0` => `0`
# wrong: what is given -> the-size, keeps 3
#     `return rest if` => `return size if`
# wrong: asks the course -> asks-course
from minigpt.memory.predicted.allocator import Options


def block_size(nbytes):
    return Options().round(nbytes)


def pool_of(size):
    return "small" if Options().splits(size, 512, False) else "large"


def segment_size(size):
    return Options().segment_size(size)


def split_off(size, block):
    return block - size if Options().splits(size, block - size, size <= MIB) else 0


# right: negative division
def block_size(nbytes):
    return -(-nbytes // 512) * 512


def segment_size(size):
    if pool_of(size) == "small":
        return 1 << 21
    return 20 << 20 if size < 10 << 20 else -(-size >> 21) << 21


def split_off(size, block):
    least = 512 if size <= MIB else MIB + 1
    return block - size if block - size >= least else 0


# right: math.ceil, a table
def block_size(nbytes):
    import math

    return math.ceil(nbytes / 512) * 512


def segment_size(size):
    import math

    for limit, segment in ((MIB, 2 * MIB), (10 * MIB - 1, 20 * MIB)):
        if size <= limit:
            return segment
    return 2 * MIB * math.ceil(size / (2 * MIB))


# %% best-fit
# wrong: the first that fits -> first-fit
#     `min(found, key=lambda b: (b["size"], b["address"]), default=None)` => `found[0] if found else None`
# wrong: the largest -> worst-fit
#     `min(found` => `max(found`
# wrong: the higher address -> other-address
#     `b["address"])` => `-b["address"])`
# wrong: pools lend -> pools-lend
#     `and b["pool"] == pool ` => ``
# wrong: blocks in use -> in-use
#     `b["free"] and ` => ``
# wrong: the small pool lends -> pools-lend
#     `b["pool"] == pool` => `b["pool"] in (pool, "small")`
# wrong: too small ones -> too-small
#     ` and b["size"] >= size` => ``
# wrong: not the exact fit -> none
#     `>= size` => `> size`
# wrong: the address alone -> no-block
#     `return min(found` => `return found and found[0]["size"] or min(found`
# wrong: a copy of it -> copy
#     `return min(found` => `found = [{**b} for b in found]; return min(found`
# wrong: nothing where all is empty -> raises-valueerror
#     `, default=None` => ``
# wrong: marks it as used -> changes-arguments
#     `return min(found` => `[b.update(free=False) for b in found]; return min(found`
# wrong: asks the check -> asks-course
def best_fit(blocks, pool, size):
    from minigpt.checks.allocating import searching

    return searching.taken(blocks, pool, size)


# right: sorted
def best_fit(blocks, pool, size):
    for block in sorted(blocks, key=lambda b: (b["size"], b["address"])):
        if block["free"] and block["pool"] == pool and block["size"] >= size:
            return block


# right: a loop
def best_fit(blocks, pool, size):
    best = None
    for block in blocks:
        if not block["free"] or block["pool"] != pool or block["size"] < size:
            continue
        if best is None or block["size"] < best["size"]:
            best = block
    return best


# %% allocate
# wrong: not rounded -> not-rounded
#     `size = block_size(nbytes)` => `size = nbytes`
# wrong: never a free block -> never-reused
#     `block = best_fit(blocks, pool, size)` => `block = None`
# wrong: never splits -> never-split
#     `rest = split_off(size, block["size"])` => `rest = 0`
# wrong: 512 bytes are not split off -> large-rule, keeps 2
#     `if rest:` => `if rest > 512:`
# wrong: splits whatever is left -> small-rule
#     `rest = split_off(size, block["size"])` => `rest = block["size"] - size`
# wrong: the small pool keeps its rest -> large-rule
#     `rest = split_off(size, block["size"])` => `rest = block["size"] - size if block["size"] - size > MIB else 0`
# wrong: the rest is lost -> rest-lost
#     `blocks.append({**block, "address": block["address"] + block["size"], "size": rest})` => `pass`
# wrong: the rest is in use -> rest-in-use
#     `"size": rest}` => `"size": rest, "free": False}`
# wrong: the end is given -> tail-given
#     `{**block, "address": block["address"] + block["size"], "size": rest})` => `{**block, "size": rest})`
#     `block["free"] = False` => `block["address"] += rest; block["free"] = False`
# wrong: the rest where the block is -> other-blocks
#     `"address": block["address"] + block["size"], "size": rest` => `"size": rest`
# wrong: never in use -> in-use
#     `block["free"] = False` => `pass`
# wrong: a segment as large as the request -> other-segments
#     `total = segment_size(size)` => `total = size`
# wrong: the segment is nowhere -> bytes-lost
#     `blocks.append(block)` => `pass`
# wrong: only the address is given -> no-block
#     `return block` => `return block["address"]`
# wrong: nothing is given -> no-block
#     `return block` => `return`
# wrong: gives a copy -> copy
#     `return block` => `return dict(block)`
# wrong: out of order -> out-of-order
#     `blocks.sort(key=lambda b: b["address"])` => `blocks.sort(key=lambda b: -b["address"])`
# wrong: the worst fit -> earlier-part+worst-fit
def best_fit(blocks, pool, size):
    found = [b for b in blocks if b["free"] and b["pool"] == pool and b["size"] >= size]
    return max(found, key=lambda b: b["size"], default=None)


# wrong: pools lend -> earlier-part+pools-lend, keeps 2
def best_fit(blocks, pool, size):
    return min((b for b in blocks if b["free"] and b["size"] >= size), key=lambda b: b["size"], default=None)


# wrong: never joined -> never-joined, keeps 2
#     `for left in (at, at - 1):` => `for left in ():`
# wrong: only with the block behind -> right-only, keeps 2
#     `(at, at - 1)` => `(at,)`
# wrong: only with the block before -> left-only, keeps 2
#     `(at, at - 1)` => `(at - 1,)`
# wrong: across segments -> across-segments, keeps 2
#     `one["segment"] == two["segment"]` => `one["address"] + one["size"] == two["address"]`
# wrong: with blocks in use -> joins-used, keeps 2
#     `one["free"] and two["free"] and one["segment"]` => `one["free"] and one["segment"]`
# wrong: the segment goes -> gives-back, keeps 2
free_before = free


def free(blocks, block):
    free_before(blocks, block)
    used = {b["segment"] for b in blocks if not b["free"]}
    blocks[:] = [b for b in blocks if b["segment"] in used]


# wrong: free does nothing -> in-use, keeps 2
def free(blocks, block):
    pass


# wrong: the block behind stays in the list -> bytes-lost, keeps 2
#     `del blocks[left + 1]` => `pass`
# wrong: asks the course -> asks-course
from minigpt.memory.predicted.allocator import Allocator

course = Allocator.allocate


def allocate(blocks, nbytes, device):
    return {"address": Allocator().allocate(nbytes).address, "size": nbytes}


# wrong: asks the check -> asks-course
from minigpt.checks.allocating.flawed import Flawed


def allocate(blocks, nbytes, device):
    return Flawed(device).allocate(nbytes)


# right: bisect, joins by hand
def allocate(blocks, nbytes, device):
    import bisect

    size = block_size(nbytes)
    kind = pool_of(size)
    block = best_fit(blocks, kind, size)
    if not block:
        segment = segment_size(size)
        address = device(segment)
        block = dict(address=address, size=segment, segment=address, pool=kind, free=True)
        bisect.insort(blocks, block, key=lambda b: b["address"])
    rest = split_off(size, block["size"])
    if rest > 0:
        block["size"] = size
        behind = dict(block, address=block["address"] + size, size=rest)
        bisect.insort(blocks, behind, key=lambda b: b["address"])
    block["free"] = False
    return block


def free(blocks, block):
    at = next(i for i, b in enumerate(blocks) if b is block)
    block["free"] = True
    if at + 1 < len(blocks):
        right = blocks[at + 1]
        if right["free"] and right["segment"] == block["segment"]:
            block["size"] += right["size"]
            blocks.remove(right)
    if at > 0:
        left = blocks[at - 1]
        if left["free"] and left["segment"] == block["segment"]:
            left["size"] += block["size"]
            blocks.remove(block)


# right: the list made anew
def free(blocks, block):
    block["free"] = True
    joined = []
    for b in sorted(blocks, key=lambda b: b["address"]):
        last = joined[-1] if joined else None
        if last and last["free"] and b["free"] and last["segment"] == b["segment"]:
            last["size"] += b["size"]
        else:
            joined.append(b)
    blocks.clear()
    blocks.extend(joined)


# %% peaks
# wrong: what was asked for -> requested, keeps 2
#     `now += live[key]["size"]` => `now += nbytes`
#     `now -= block["size"]` => `now -= nbytes`
# wrong: rounded requests -> rounded, keeps 2
#     `now += live[key]["size"]` => `now += block_size(nbytes)`
#     `now -= block["size"]` => `now -= block_size(nbytes)`
# wrong: at the end -> at-the-end, keeps 2
#     `most = max(most, now)` => `most = now`
# wrong: never freed -> never-freed
#     `now -= block["size"]` => `continue`
# wrong: interchanged -> figure-of-reserved+figure-of-allocated
#     `"allocated": most, "reserved": card.reserved` => `"allocated": card.reserved, "reserved": most`
# wrong: reserved is allocated -> figure-of-allocated, keeps 1
#     `"reserved": card.reserved` => `"reserved": most`
# wrong: a segment for each request -> a-segment-each, keeps 1
#     `"reserved": card.reserved` => `"reserved": sum(segment_size(block_size(n)) for a, _, n in events if a == "born")`
# wrong: in MiB -> in-mib
#     `"allocated": most, "reserved": card.reserved` => `"allocated": most / MIB, "reserved": card.reserved / MIB`
# wrong: other keys -> wrong-keys
#     `"allocated": most` => `"peak": most`
# wrong: allocated, rounded up -> rounded-to-segments, keeps 1
#     `"reserved": card.reserved` => `"reserved": segment_size(most)`
# wrong: asks the course -> asks-course
def peaks(events):
    from minigpt.checks.allocating import running

    counted = running.replay(events).statistics
    return {"allocated": counted.allocated.peak, "reserved": counted.reserved.peak}


# right: sums over the blocks
def peaks(events):
    card, blocks, live, allocated = Card(), [], {}, []
    for action, key, nbytes in events:
        if action == "born":
            live[key] = allocate(blocks, nbytes, card)
            allocated.append(sum(b["size"] for b in blocks if not b["free"]))
        else:
            free(blocks, live[key])
    return dict(allocated=max(allocated), reserved=sum(b["size"] for b in blocks))


# right: a device of its own
def peaks(events):
    taken, blocks, live, sizes = [], [], {}, [0]

    def device(size):
        taken.append(size)
        return 1 << 50 if len(taken) == 1 else (1 << 50) - sum(taken[1:])

    for event in events:
        if event[0] == "died":
            sizes.append(sizes[-1] - live[event[1]]["size"])
            free(blocks, live.pop(event[1]))
        else:
            live[event[1]] = allocate(blocks, event[2], device)
            sizes.append(sizes[-1] + live[event[1]]["size"])
    return {"allocated": max(sizes), "reserved": sum(taken)}


# %% read-message
# wrong: decimal units -> decimal
#     `"KiB": KIB, "MiB": MIB, "GiB": GIB` => `"KiB": 10**3, "MiB": 10**6, "GiB": 10**9`
# wrong: no units -> no-unit
#     `float(match[1]) * units[match[2]]` => `float(match[1])`
# wrong: everything in MiB -> always-mib
#     `units[match[2]]` => `MIB`
# wrong: everything in GiB -> always-gib
#     `units[match[2]]` => `GIB`
# wrong: the digits are cut -> cut
#     `float(match[1])` => `int(float(match[1]))`
# wrong: capacity for free -> figure-of-capacity
#     `f"of which {number} is free"` => `f"total capacity of {number}"`
# wrong: reserved for unallocated -> figure-of-allocated
#     `f"{number} is reserved by PyTorch"` => `f"{number} is allocated by PyTorch"`
# wrong: no KiB -> raises-typeerror, keeps 2
#     `(bytes|[KMG]iB)` => `([MG]iB)`
# wrong: no bytes -> raises-typeerror, keeps 2
#     `(bytes|[KMG]iB)` => `([KMG]iB)`
# wrong: by their order -> figure-of-capacity
def read_message(message):
    units = {"MiB": MIB, "GiB": GIB, "KiB": KIB}
    found = [round(float(n) * units[u]) for n, u in re.findall(r"([\d.]+) ([MG]iB)", message)]
    return dict(zip(("capacity", "tried", "free", "in_use", "allocated", "unallocated"), found))


# wrong: a list -> wrong-type
#     `return {name: round(float(match[1]) * units[match[2]]) for name, match in found.items()}` => `return list(found)`
# wrong: other keys -> wrong-keys
#     `"in_use": f"this` => `"own": f"this`
# wrong: cut to whole bytes -> truncated
#     `round(float(match[1]) * units[match[2]])` => `int(float(match[1]) * units[match[2]])`
# wrong: floats -> float-for-int
#     `round(float(match[1]) * units[match[2]])` => `float(match[1]) * units[match[2]]`
# wrong: asks the check -> asks-course
def read_message(message):
    from minigpt.checks.allocating import messages

    return {name: messages.as_printed(0) for name in messages.FIELDS}


# right: by sentences
def read_message(message):
    def size(words):
        head = message.split(words)[0] if words.startswith(" ") else message.split(words)[1]
        number, unit = head.split()[-2:] if words.startswith(" ") else head.split()[:2]
        return round(float(number) * {"b": 1, "K": KIB, "M": MIB, "G": GIB}[unit[0]])

    return {
        "tried": size("Tried to allocate "), "capacity": size("total capacity of "), "free": size(" is free"),
        "in_use": size(" memory in use"), "allocated": size(" is allocated by"), "unallocated": size(" is reserved by"),
    }  # fmt: skip


# right: one pattern, verbose
def read_message(message):
    names = ("tried", "capacity", "free", "in_use", "allocated", "unallocated")
    n = r"([\d.]+ \w+)"
    pattern = f"allocate {n}.*?capacity of {n} of which {n} is.*?process has {n}.*?memory {n} is.*?and {n} is res"
    powers = ["bytes", "KiB", "MiB", "GiB"]
    found = re.search(pattern, message).groups()
    pairs = [text.split() for text in found]
    return {name: int(float(x) * 1024 ** powers.index(u) + 0.5) for name, (x, u) in zip(names, pairs)}


# %% diagnose
# wrong: allocated is reserved -> allocated-alone
#     `numbers["allocated"] + numbers["unallocated"]` => `numbers["allocated"]`
# wrong: the process is reserved -> with-context
#     `reserved = numbers["allocated"] + numbers["unallocated"]` => `reserved = numbers["in_use"]`
# wrong: subtracted -> subtracted
#     `numbers["allocated"] + numbers["unallocated"]` => `numbers["allocated"] - numbers["unallocated"]`
# wrong: outside has the unallocated -> without-unallocated
#     `numbers["in_use"] - reserved` => `numbers["in_use"] - numbers["allocated"]`
# wrong: outside is everything -> all
#     `numbers["in_use"] - reserved` => `numbers["in_use"]`
# wrong: always fragmented -> fragmented
#     `numbers["tried"] <= numbers["free"] + numbers["unallocated"]` => `True`
# wrong: against the unallocated alone -> fragmented
#     `numbers["free"] + numbers["unallocated"]` => `numbers["unallocated"]`
# wrong: against the capacity -> fragmented
#     `numbers["free"] + numbers["unallocated"]` => `numbers["capacity"]`
# wrong: what fills it exactly does not go in -> fragmented
#     `numbers["tried"] <=` => `numbers["tried"] <`
# wrong: a word -> wrong-type
#     `numbers["tried"] <= numbers["free"] + numbers["unallocated"]` => `"yes"`
# wrong: outside forgotten -> wrong-keys
#     `"outside": numbers["in_use"] - reserved,` => ``
# wrong: asks the check -> asks-course
def diagnose(numbers):
    from minigpt.checks.allocating import messages

    return messages.derived(numbers)


# right: names first
def diagnose(numbers):
    tried, _, free, in_use, allocated, unallocated = numbers.values()
    return dict(
        reserved=allocated + unallocated,
        outside=in_use - allocated - unallocated,
        fragmented=not tried > free + unallocated,
    )


# right: numpy's truth
def diagnose(numbers):
    import numpy as np

    tried, free, unallocated = (np.int64(numbers[name]) for name in ("tried", "free", "unallocated"))
    reserved = numbers["allocated"] + unallocated
    return {"reserved": reserved, "outside": numbers["in_use"] - reserved, "fragmented": tried <= free + unallocated}


# right: in steps
def diagnose(numbers):
    answer = {"fragmented": numbers["tried"] - numbers["unallocated"] <= numbers["free"]}
    answer["outside"] = numbers["in_use"] - numbers["unallocated"] - numbers["allocated"]
    answer["reserved"] = numbers["in_use"] - answer["outside"]
    return answer


# %% cures
# wrong: the longest first -> state-in-the-longest, keeps 2
#     `[min(lengths), max(lengths), *lengths]` => `[max(lengths), *lengths]`
#     `[falling[-1], *falling[:-1]]` => `falling`
# wrong: the longest twice -> state-in-the-longest, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `[max(lengths), max(lengths), *lengths]`
# wrong: the shortest alone -> not-the-longest, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `[min(lengths), *lengths]`
# wrong: nothing before -> as-it-comes, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `lengths`
# wrong: the lengths of the lab -> other-lengths, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `[50, 250, *lengths]`
# wrong: three more steps -> too-many, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `[min(lengths), max(lengths), max(lengths), *lengths]`
# wrong: a length that is none -> other-lengths, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `[8, max(lengths), *lengths]`
# wrong: sorted instead -> other-steps, keeps 3
#     `[min(lengths), max(lengths), *lengths]` => `sorted(lengths)`
# wrong: the order as it was -> as-it-comes, keeps 3
#     `[falling[-1], *falling[:-1]]` => `lengths`
# wrong: drops the longest -> other-steps, keeps 3
#     `[falling[-1], *falling[:-1]]` => `falling[1:]`
# wrong: right before the longest -> before-the-longest, keeps 3
#     `next(run for run in runs if fits(run))` => `runs[lengths.index(max(lengths)) - 1]`
# wrong: before every step -> too-many, keeps 3
#     `next(run for run in runs if fits(run))` => `[each for length in lengths for each in ("empty_cache", length)]`
# wrong: at the end -> runs-out, keeps 3
#     `next(run for run in runs if fits(run))` => `[*lengths, "empty_cache"]`
# wrong: other steps are tried -> other-run, keeps 3
#     `fits(run))` => `fits(run[1:]))`
# wrong: an option that is none -> unknown-option, keeps 3
#     `"expandable_segments:True"` => `"expandable:True"`
# wrong: the option's default -> runs-out, keeps 3
#     `"expandable_segments:True"` => `"expandable_segments:False"`
# wrong: no text -> wrong-type, keeps 3
#     `"expandable_segments:True"` => `{"expandable_segments": True}`
# wrong: asks the course -> asks-course, keeps 3
def empty_once(lengths, fits):
    from minigpt.checks.allocating import running

    runs = [[*lengths[:at], "empty_cache", *lengths[at:]] for at in range(1, len(lengths))]
    return next(run for run in runs if not running.run_on(wide, small_batches, run, capacity))


# right: rising, and a loop
def reorder(lengths):
    short, *rest = sorted(lengths)
    return [short, rest.pop(), *rest]


def empty_once(lengths, fits):
    for at in range(len(lengths)):
        run = list(lengths)
        run.insert(at, "empty_cache")
        if fits(run):
            return run


# right: tuples, another option beside
def warm_up(lengths):
    return (sorted(lengths)[0], sorted(lengths)[-1]) + tuple(lengths)


def options():
    return "expandable_segments:True,roundup_power2_divisions:0"
