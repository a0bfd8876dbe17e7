"""Who lives when: one bar for each storage of a step, from its birth to its death, as tall as the storage is large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from minigpt.memory.plots import style
from minigpt.memory.plots.described import say

LOWEST = 0.35  # of the usual height: what is much smaller than the rest still gets a row that can be read


def lives(
    storages: Sequence[tuple[str, int, int, float]],
    title: str,
    *,
    kept: Collection[int] = (),
    gradients: Collection[int] = (),
    unit: str = "B",
    down: dict[str, float] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """``storages``, each (name, birth, death, size), from top to bottom; births and deaths are places in the order of
    events, sizes are in ``unit``.

    The places in ``storages`` of what is saved for backward are in ``kept``, of gradients in ``gradients``; the rest is
    temporary. A name that is met again is numbered. ``down`` are named instants. Raises ValueError where there is none.
    """
    if not storages:
        raise ValueError("storages is empty; it must hold at least one (name, birth, death, size)")
    names = numbered([name for name, *_ in storages])
    usual = sorted(size for *_, size in storages)[len(storages) // 2]
    heights = [max(size / usual, LOWEST) for *_, size in storages]
    if axes is None:
        axes = style.new_axes(9, 1.2 + 0.2 * sum(heights))
    groups = {"activations": ("saved for backward", set(kept)), "gradients": ("gradient", set(gradients))}
    top, middles, told = 0.0, [], []
    for place, ((_, born, died, size), height) in enumerate(zip(storages, heights)):
        bucket = next((name for name, (_, places) in groups.items() if place in places), "temporary")
        color = style.COLORS[bucket]
        axes.barh(top + height / 2, died - born, 0.88 * height, left=born, color=color)
        middles.append(top + height / 2)
        top += height
        told.append(f"{names[place]}: {size:,.4g} {unit}, from {born:,} to {died:,}")
    for at in (down or {}).values():
        axes.axvline(at, color="black", linestyle=":", linewidth=1)
    axes.set_yticks(middles, [f"{name}, {size:,.4g} {unit}" for name, (*_, size) in zip(names, storages)], fontsize=9)
    axes.set_ylim(top, 0)
    groups["temporary"] = ("neither", set(range(len(storages))) - set(kept) - set(gradients))
    entries = [Patch(color=style.COLORS[name], label=said) for name, (said, places) in groups.items() if places]
    style.legend_beside(axes, entries)
    style.finish(axes, title, "births, savings and deaths, in order (not in seconds)", down=down)
    say(axes, f"Lives, in the order of events. {'; '.join(told)}.")
    return axes


def numbered(names: Sequence[str]) -> list[str]:
    """``["mm", "add", "mm"]`` becomes ``["mm 1", "add", "mm 2"]``."""
    often, met = Counter(names), Counter[str]()
    out = []
    for name in names:
        met[name] += 1
        out.append(f"{name} {met[name]}" if often[name] > 1 else name)
    return out
