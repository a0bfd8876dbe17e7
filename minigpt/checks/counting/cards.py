"""The smallest card that holds so many bytes, and what each mistake would choose.

smallest(answer, (nbytes, cards))      ``answer(nbytes, cards)``; cards are {name: (size, unit)}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import choice
from minigpt.checks.naming import Hints
from minigpt.memory.units import GB, GIB

knows(__name__)
Cards = Mapping[str, tuple[float, str]]
UNITS = {"GB": GB, "GiB": GIB}


def smallest(answer: Callable, case: tuple[int, Cards]) -> None:
    mine = by_hand(answer, *case, none_ok=True)
    choice(mine, _chosen(*case), f"smallest_card({case[0]:,}, ...)", wrong=slips(*case))


def _chosen(nbytes: int, cards: Cards, gb: int = GB, gib: int = GIB) -> str | None:
    sizes = {name: size * (gb if unit == "GB" else gib) for name, (size, unit) in cards.items()}
    return min((name for name in sizes if sizes[name] >= nbytes), key=lambda n: (sizes[n], n), default=None)


def slips(nbytes: int, cards: Cards) -> Hints:
    """What the mistakes choose; the first that fits the choice explains it."""
    right, bytes_of = _chosen(nbytes, cards), {name: size * UNITS[unit] for name, (size, unit) in cards.items()}
    enough = [name for name in cards if bytes_of[name] >= nbytes]  # in the list's order
    by_number = min(enough, key=lambda name: (cards[name][0], name), default=None)

    def has(name: str | None) -> str:
        return f"{name} has {cards[name][0]} {cards[name][1]}, which is {bytes_of[name]:,.0f} bytes" if name else ""

    largest, no_card = max(cards, key=lambda name: bytes_of[name]), "no card holds them, so None"
    small, large = _chosen(nbytes, cards, gb=GIB), _chosen(nbytes, cards, gib=GB)
    least = min(cards, key=lambda name: bytes_of[name])
    return {
        "none": (f"{right} holds them", None),
        "by-number": (f"the numbers are compared and not the bytes: {has(by_number)}, and {has(right)}", by_number),
        "gb-as-gib": (f"{has(small)}, too few{'' if right else '; ' + no_card}", small),
        "smallest": (f"{has(least)}, too few{'' if right else '; ' + no_card}", least),
        "gib-as-gb": (f"GiB are taken for GB: {has(right)}", large),
        "exact-fit": ("a card holds what fills it exactly: equal is enough", _chosen(nbytes + 1, cards)),
        "first": ("that is the first card in the list that is large enough, not the smallest",
                  enough[0] if enough else None),
        "last": ("that is the last card in the list that is large enough, not the smallest",
                 enough[-1] if enough else None),
        "largest": (f"{has(largest)}; {no_card if right is None else right + ' is enough'}", largest),
    }  # fmt: skip
