"""The two targets of lab 14, as its text shows them."""

from __future__ import annotations

from typing import Any

FIRST: dict[str, Any] = {
    "model": "llama-3.2-3b",
    "card": "T4",
    "lengths": {128: 3000, 256: 2000, 512: 1000},
    "documents": (16, 32),
    "trained": 10_000_000,
    "hours": 1,
}
SECOND = FIRST | {"lengths": {512: 1500, 1024: 900, 2048: 450, 8192: 75}}
