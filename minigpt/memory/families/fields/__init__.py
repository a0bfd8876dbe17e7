"""The whitelist: every field of a configuration file is used, known to be without effect on memory, or refused.

    used             memory depends on it: its value, or transformers' default if it is not there; a flag stays a flag
    only             covered for the listed values; any other is refused by name
    without effect   names, token ids, epsilons, what generation reads: any value is accepted
    unknown          refused by name, unless it is null, which transformers reads as not set

``check_fields`` returns the first two, which is what a family reads: no default stands anywhere else. One table for
each group of families; what all share stands once, in ``shared``. Pure Python: this imports no torch.

Left out: whether a size is a sensible number, and what a null means where transformers allows it
(``num_key_value_heads``: as many as query heads): that is the family's.
"""

from __future__ import annotations

from typing import Any

from minigpt.memory.families.fields.experts import EXPERTS
from minigpt.memory.families.fields.layer_norms import LAYER_NORMS
from minigpt.memory.families.fields.llamas import LLAMAS
from minigpt.memory.families.fields.shared import COMMON_ONLY, COMMON_WITHOUT_EFFECT, HARMLESS_PREFIXES, Fields
from minigpt.values import check_flags

FIELDS: dict[str, Fields] = {**LLAMAS, **EXPERTS, **LAYER_NORMS}
ROPE = ("rope_parameters", "rope_scaling")  # dictionaries of rotary parameters: today's name and the older one


def check_fields(model_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """What a family reads: the contents of a config.json, checked, and completed with transformers' defaults.

    Aliases are gone, and so is what has no effect. Raises ValueError, naming the field and its value, for one that the
    family has not, or whose value is not covered.
    """
    if model_type not in FIELDS:
        raise ValueError(f"model_type is {model_type!r}; allowed: {', '.join(FIELDS)}")
    fields = FIELDS[model_type]
    only = {**COMMON_ONLY, **fields.only}
    if "partial_rotary_factor" in fields.used:
        del only["partial_rotary_factor"]
    values = {**{name: allowed[0] for name, allowed in only.items()}, **fields.used}
    given = _rotary(config, only["rope_type"], fields.rotary_part) if fields.rotary else config
    for name, value in sorted(given.items(), key=lambda item: item[0] in fields.aliases):  # aliases overwrite
        name = fields.aliases.get(name, name)
        if name in values:
            values[name] = value
        elif not _without_effect(name, fields) and value is not None:
            raise ValueError(f"{name} is {value!r}; {model_type} has no such field")
    for name, allowed in only.items():
        if not any(values[name] == one and isinstance(values[name], bool) == isinstance(one, bool) for one in allowed):
            raise ValueError(f"{name} is {values[name]!r}; allowed: {', '.join(map(str, allowed))}")
    check_flags(**{name: values[name] for name, default in fields.used.items() if isinstance(default, bool)})
    return {"model_type": model_type, **values}


def _without_effect(name: str, fields: Fields) -> bool:
    return name in COMMON_WITHOUT_EFFECT or name in fields.without_effect or name.startswith(HARMLESS_PREFIXES)


def _rotary(config: dict[str, Any], types: tuple, part_of_head: str) -> dict[str, Any]:
    """``config`` with its dictionaries of rotary parameters reduced to ``rope_type`` and the part of a head."""
    plain = {name: value for name, value in config.items() if name not in ROPE}
    for name in ROPE:
        given = config.get(name)
        if given is None:
            continue
        if not isinstance(given, dict):
            raise ValueError(f"{name} is {given!r}; it must be a dictionary")
        by_layer_type = [part for part in given.values() if isinstance(part, dict)]  # gemma3 has two
        for part in by_layer_type or [given]:
            kind = part.get("rope_type", part.get("type", "default"))
            if kind not in types:
                raise ValueError(f"rope_type is {kind!r}; allowed: {', '.join(types)}")
            plain["rope_type"] = kind
            if part.get("partial_rotary_factor") is not None:
                plain[part_of_head] = part["partial_rotary_factor"]
    return plain
