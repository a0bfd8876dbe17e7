"""Names of models: a short one, a Hub id or a path, each to the contents of a config.json. Nothing is downloaded.

    llama-3.1-8b                        a name of ``KNOWN``
    meta-llama/Llama-3.1-8B-Instruct    a Hub id of its publisher, or of Unsloth's copy: the same sizes
    someone/their-model                 what the local Hugging Face cache holds
    folder, folder/config.json          a file

Left out: what a Hub id's own code (``trust_remote_code``) would build. This file imports no torch.
"""

from __future__ import annotations

import os
import re

from minigpt.memory.known import KNOWN, WITH_DROPOUT

__all__ = ["KNOWN", "cached_config", "known_name", "left_out", "nearest", "resolve"]

# Fields that say what a model is, and not how large. Where a config.json has no other, transformers' defaults would
# quietly make the family's first model of it.
NO_SIZES = {"model_type", "architectures", "dtype", "torch_dtype", "transformers_version"}

# Whose Hub ids are taken for the model that their name says: the publishers, and three who copy unchanged.
PUBLISHERS = (
    "allenai", "bigcode", "bigscience", "codellama", "deepseek-ai", "eleutherai", "facebook", "google",
    "huggingfacetb", "huggyllama", "ibm-granite", "meta-llama", "microsoft", "mistralai", "nousresearch", "openai",
    "openai-community", "qwen", "tiiuae", "tinyllama", "unsloth",
)  # fmt: skip

# Words of a Hub id that say how the weights were trained or stored, not which sizes they have.
_TRAINING = {"instruct", "it", "chat", "base", "hf", "pt", "unsloth", "bnb", "4bit", "deduped", "coder"}

# Hub ids, after that, whose sizes have another name here.
_ALIASES = {
    "tinyllama": "tinyllama-1.1b",
    "tinyllama-1.1b-v1.0": "tinyllama-1.1b",
    "tinyllama-1.1b-intermediate-step-1431k-3t": "tinyllama-1.1b",
    "codellama": "codellama-7b",
    "mistral-7b-v0.1": "mistral-7b",
    "mistral-nemo-2407": "mistral-nemo",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "phi-3-mini-4k": "phi-3-mini",
    "phi-3-medium-4k": "phi-3-medium",
    "phi-1-5": "phi-1.5",
    "olmo-2-1124-7b": "olmo-2-7b",
    "olmo-2-1124-13b": "olmo-2-13b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
}


def resolve(source: str | os.PathLike) -> dict:
    """The contents of the config.json that ``source`` names: a known name, a path, or a Hub id, in this order.

    Raises ValueError, in one sentence that says what to give instead, for a name that is neither known nor in the local
    cache, and for a file that cannot be read or holds something else.
    """
    text = os.fspath(source)
    if known := known_name(text):
        return dict(KNOWN[known])
    if os.path.exists(text):
        return _read(text)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.endswith(".json"):
        if path := cached_config(text):
            return _read(path)
        raise ValueError(
            f"{text!r} is neither known here nor in {_cache()}: fetch it (hf download {text} config.json), "
            f"or give the path of its config.json{_or_nearest(text)}"
        )
    raise ValueError(f"cannot read {text!r}: no such file, and no known model{_or_nearest(text)}")


def known_name(text: str) -> str | None:
    """The name in ``KNOWN`` that ``text`` means: itself in any case, or a publisher's Hub id; None for another."""
    publisher, _, name = text.lower().rpartition("/")
    if publisher and publisher not in PUBLISHERS:
        return None
    if name in KNOWN:
        return name
    words = name.replace("_", "-").removeprefix("meta-").split("-")
    plain = "-".join(word for word in words if word not in _TRAINING)
    plain = _ALIASES.get(plain, plain)
    return plain if plain in KNOWN else None


def left_out(text: str) -> str | None:
    """A sentence for a known name that stands here without the dropout that its config.json has."""
    name = known_name(text)
    if name is None or not name.startswith(WITH_DROPOUT):
        return None
    return f"{name} is published with dropout 0.1, and is without it here: its own config.json has it"


def nearest(text: str) -> str | None:
    """The known name that is spelt most like ``text``, or None."""
    from difflib import get_close_matches  # here, because the arithmetic alone must start fast

    found = get_close_matches(text.lower().rpartition("/")[2], KNOWN, n=1, cutoff=0.6)
    return found[0] if found else None


def _or_nearest(text: str) -> str:
    found = nearest(text)
    return f"; did you mean {found}?" if found else "; `python -m minigpt.memory --help` lists the names"


def cached_config(hub_id: str) -> str | None:
    """The path of a Hub id's config.json in the local cache: of its main branch, or of the newest snapshot.

    The cache is where huggingface_hub keeps it: ``$HF_HUB_CACHE``, ``$HF_HOME/hub`` or ``~/.cache/huggingface/hub``.
    """
    folder = os.path.join(_cache(), "models--" + hub_id.replace("/", "--"))
    found = [entry.path for entry in _entries(os.path.join(folder, "snapshots"))]
    found.sort(key=lambda path: os.stat(path).st_mtime, reverse=True)
    main = os.path.join(folder, "refs", "main")
    if os.path.isfile(main):
        with open(main, encoding="utf8", errors="replace") as file:
            found.insert(0, os.path.join(folder, "snapshots", file.read().strip()))
    paths = [os.path.join(path, "config.json") for path in found]
    return next(filter(os.path.isfile, paths), None)


def _entries(folder: str) -> list[os.DirEntry]:
    return list(os.scandir(folder)) if os.path.isdir(folder) else []


def _cache() -> str:
    """huggingface_hub's constants.py: HF_HUB_CACHE, or hub in HF_HOME, which lies in XDG_CACHE_HOME."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.expandvars(os.path.expanduser(cache))


def _read(path: str) -> dict:
    import json  # here, because the arithmetic alone must start fast

    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, encoding="utf8") as file:
            content = json.load(file)
    except OSError as error:
        raise ValueError(f"cannot read {path!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # broken or very deep JSON, or bytes that are not text
        raise ValueError(f"{path!r} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path!r} holds a {type(content).__name__}; a config.json holds one object")
    if content and content.keys() <= NO_SIZES:
        raise ValueError(f"{path!r} has {', '.join(content)} alone; a config.json states the model's sizes")
    return content
