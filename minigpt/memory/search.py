"""What would fit a card: the longest sequence, the largest batch, and the cheapest changes of the plan.

Each is found by asking ``predict``, and no plan is asked twice. Checkpointing is one change: whether it can do is asked
of the policy that keeps least, and once it does, which is the cheapest that does (``policies``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import MOST_PASSES, TrainingPlan
from minigpt.memory.policies import Policies, words
from minigpt.memory.predicted.flops import Flops, priced
from minigpt.memory.room import has_learned_positions
from minigpt.memory.units import readable

MOST_SEQUENCES = 2**20  # where the search for a batch ends
WANTED = 3  # changes


@dataclass(frozen=True)
class Change:
    """Fields of the plan set otherwise, so that it fits: in words what it costs, and the bytes saved at the peak."""

    fields: dict[str, Any]
    costs: str
    saves: int = 0
    rank: int = 0  # how dear it is among the changes that were tried
    checkpoints: bool = False  # whether a policy is to be chosen, or was

    @property
    def what(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.fields.items())

    @property
    def persists(self) -> bool:
        """Whether it changes what stays from step to step."""
        return not {"method", "precision", "optimizer", "double_quantization"}.isdisjoint(self.fields)

    def __str__(self) -> str:
        return f"{self.what}: saves {readable(self.saves)}; costs {self.costs}"


class Search:
    """Plans near one plan, each predicted once."""

    def __init__(self, architecture: Architecture, plan: TrainingPlan) -> None:
        self.architecture, self.plan, self.room = architecture, plan, 0
        self.known: dict[TrainingPlan, tuple[StepMemory, Flops]] = {}
        self.refused: dict[str, None] = {}  # policies that had no price
        self.step, self.work = self._asked({})

    def found(self, room: int) -> dict[str, Any]:
        """The fields of the verdict that are searched for, where tensors have ``room`` bytes."""
        self.room, plan, context = room, self.plan, self.architecture.context
        longest = context if has_learned_positions(self.architecture) else max(context, plan.seq_len)
        length = largest(lambda n: self.needs(seq_len=n), self.room, plan.seq_len, longest)
        batch = largest(lambda n: self.needs(batch=n), self.room, plan.batch, MOST_SEQUENCES)
        changes, not_priced = ((), ()) if self.step.peak.total <= room else self._changes(length, batch)
        return dict(searched=True, longest_sequence=length, largest_batch=batch, changes=changes, not_priced=not_priced)

    def needs(self, **fields) -> int:
        """The peak's bytes with ``fields`` set otherwise. Raises what ``predict`` raises."""
        return self._asked(fields)[0].peak.total

    def persistent(self, **fields) -> int:
        """Bytes that stay from step to step with ``fields`` set otherwise."""
        return self._asked(fields)[0].ledger.persistent

    def _asked(self, fields: dict[str, Any]) -> tuple[StepMemory, Flops]:
        plan = self._few_passes(replace(self.plan, **fields))
        if plan not in self.known:
            self.known[plan] = priced(self.architecture, plan)
        return self.known[plan]

    @staticmethod
    def _few_passes(plan: TrainingPlan) -> TrainingPlan:
        """Every pass after the second holds what the second held, so two are enough."""
        return replace(plan, accumulation=min(plan.accumulation, 2))

    def _changes(self, length: int | None, batch: int | None) -> tuple[tuple[Change, ...], tuple[str, ...]]:
        """The cheapest changes that make it fit: one alone, else two together, else as many as it takes."""
        found: list[Change] = []
        rest: list[Change] = []
        not_priced: list[str] = []
        for rank, change in enumerate(_candidates(self.plan, length, batch)):
            if len(found) == WANTED:
                break
            try:
                change = self._priced(replace(change, rank=rank))
            except ValueError:
                not_priced.append(change.what)
                continue
            if self._enough(change):
                found.append(self._settled(change))
            else:
                rest.append(change)
        if len(found) < WANTED and self._enough(together := self._joined(rest)):
            for pair in sorted(combinations(rest, 2), key=lambda pair: sum(change.rank for change in pair)):
                if len(found) < WANTED and self._may_do(pair) and self._enough(both := self._joined(pair)):
                    found.append(self._settled(both))
            if not found:
                found.append(self._settled(self._fewest(rest, together)))
        return tuple(sorted(found, key=lambda change: change.rank)), (*not_priced, *self.refused)

    def _priced(self, change: Change) -> Change:
        if change.checkpoints:
            change = replace(change, fields=change.fields | self._policies(change.fields).least())
        return replace(change, saves=self.step.peak.total - self.needs(**change.fields))

    def _enough(self, change: Change) -> bool:
        return change.saves >= self.step.peak.total - self.room

    def _settled(self, change: Change) -> Change:
        """A change that does, with the cheapest policy that does, if it has one."""
        if not change.checkpoints:
            return change
        others = {name: value for name, value in change.fields.items() if name not in ("checkpointing", "use_cache")}
        policies = self._policies(others)
        policy, plan, n_layer = policies.cheapest(), policies.plan, self.architecture.n_layer
        self.refused |= dict.fromkeys(policies.refused)
        fields, work = others | policy, self._asked(others | policy)[1]
        before = work.without if self.plan.checkpointing == "none" else self._asked(others)[1].total
        costs = words(replace(plan, **policy), work, before, n_layer)
        saves = self.step.peak.total - self.needs(**fields)
        return replace(change, fields=fields, costs="; ".join(filter(None, [change.costs, costs])), saves=saves)

    def _policies(self, fields: dict[str, Any]) -> Policies:
        """The policies of checkpointing, with ``fields`` set otherwise."""
        plan = replace(self.plan, **fields)
        return Policies(lambda policy: self._asked(fields | policy), plan, self.architecture.n_layer, self.room)

    def _joined(self, changes: Sequence[Change]) -> Change:
        """All of them together, as dear as the dearest; a later one's fields win, and a policy is chosen anew."""
        plain = [change for change in changes if not change.checkpoints]
        fields = {name: value for change in plain for name, value in change.fields.items()}
        costs, rank = "; ".join(change.costs for change in plain), max((c.rank for c in changes), default=0)
        return self._priced(Change(fields, costs, rank=rank, checkpoints=len(plain) < len(changes)))

    def _may_do(self, pair: tuple[Change, Change]) -> bool:
        """Whether two changes can do together: what persists has to have room, and most changes leave it as it is."""
        if all(change.persists for change in pair):
            return True
        lasting = next((change for change in pair if change.persists), Change({}, ""))
        return self.persistent(**lasting.fields) <= self.room

    def _fewest(self, changes: list[Change], together: Change) -> Change:
        """``together`` without what it does not need, the dearest first."""
        for change in reversed(changes):
            fewer = [other for other in changes if other is not change]
            if fewer and self._enough(joined := self._joined(fewer)):
                changes, together = fewer, joined
        return together


def _candidates(plan: TrainingPlan, length: int | None, batch: int | None) -> Iterator[Change]:
    """What could be set otherwise, the cheapest first; ``length`` and ``batch`` are what would fit."""
    full, qlora = plan.method == "full", plan.method == "qlora"
    if plan.attention == "eager":
        yield Change(dict(attention="sdpa"), "nothing: one kernel gives the same result")
    if plan.holds == "outputs":
        yield Change(dict(holds="loss"), "nothing: the outputs die before backward")
    if plan.use_cache:
        yield Change(dict(use_cache=False), "nothing: training does not read the cache")
    if plan.zero_grad == "in_place":
        yield Change(dict(zero_grad="before_forward"), "nothing: gradients are made anew")
    if plan.optimizer == "adamw" and plan.optimizer_loop == "foreach":
        yield Change(dict(optimizer_loop="fused"), "nothing: one kernel makes the update")
    if plan.loss in ("model", "shifted"):
        yield Change(dict(loss="chunked"), "a second product with the head")
    if (batch or 1) < plan.batch:
        passes = -(-plan.batch // (batch or 1))
        fields = dict(batch=-(-plan.batch // passes), accumulation=passes * plan.accumulation)
        if fields["accumulation"] <= MOST_PASSES:
            costs = f"{fields['accumulation']} smaller passes for a step, which use the card less well"
            yield Change(fields, costs)
    if qlora and plan.quantization == "nf4" and not plan.double_quantization:
        yield Change(dict(double_quantization=True), "scales rounded to 8 bits, and a kernel more for each matrix")
    if plan.optimizer == "adamw" and not plan.regime.float32_update:
        yield Change(dict(optimizer="adamw8bit"), "moments rounded to 8 bits in blocks of 256")
    if plan.checkpointing != "offload":
        yield Change({}, "", checkpoints=True)
    if plan.regime.weights == 4:
        native = plan.card is None or plan.regime.half in GPUS[plan.card].formats
        costs = "weights, gradients and moments in 16 bits: small updates are lost" if full else "a base in 16 bits"
        yield Change(dict(precision="bf16" if native else "fp16"), costs)
    adapted = dict(precision="bf16") if plan.regime.float32_update else {}
    if full:
        yield Change(dict(method="lora", **adapted), f"adapters of rank {plan.rank} are trained, the base is not")
    if not qlora:
        costs = "a base rounded to 4 bits, made 16 bits again for every product"
        costs = f"adapters of rank {plan.rank} are trained, on {costs}" if full else costs
        yield Change(dict(method="qlora", **adapted), costs)
    if length and length < plan.seq_len:
        yield Change(dict(seq_len=length), f"examples are cut after {length:,} tokens")


def largest(needs: Callable[[int], int], room: int, start: int, most: int) -> int | None:
    """The largest n from 1 to ``most`` with ``needs(n) <= room``, or None; ``needs`` never falls.

    A peak bends upwards and is nearly straight. So a line through two that fit points at the border or beyond it, and a
    chord to one that does not points at it or short of it: by turns they close in, from ``start`` on.
    """
    at = {1: needs(1)}
    if at[1] > room:
        return None
    before, low, high = 1, 1, most + 1  # low fits; high does not, or is out of bounds
    guess, turn = min(start, most), 0
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        at[guess] = needs(guess)
        if at[guess] <= room:
            before, low = low, guess
        else:
            high = guess
        turn += 1
        if turn % 4 == 0:
            guess = (low + high) // 2
        elif turn % 2 and high in at:
            guess = low + (room - at[low]) * (high - low) // (at[high] - at[low])
        elif at[low] > at[before]:
            guess = low + (room - at[low]) * (low - before) // (at[low] - at[before])
        else:
            guess = 2 * low
    return low
