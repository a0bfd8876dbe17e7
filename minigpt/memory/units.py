"""Bytes to text. GB is 1e9 bytes, GiB is 2**30 bytes, and nothing else is ever printed.

One GiB is 7.37% more than one GB: 24 GiB are 25.8 GB. Cards are sold by one and filled by the other.
"""

KB, MB, GB = 10**3, 10**6, 10**9
KIB, MIB, GIB = 2**10, 2**20, 2**30
UNITS = {"B": 1, "kB": KB, "MB": MB, "GB": GB, "KiB": KIB, "MiB": MIB, "GiB": GIB}


def gb(n_bytes: float, digits: int = 2) -> str:
    """``gb(13476831232) == '13.48 GB'``."""
    return f"{n_bytes / GB:,.{digits}f} GB"


def gib(n_bytes: float, digits: int = 2) -> str:
    """``gib(13476831232) == '12.55 GiB'``."""
    return f"{n_bytes / GIB:,.{digits}f} GiB"


def mb(n_bytes: float, digits: int = 1) -> str:
    """``mb(3412480) == '3.4 MB'``."""
    return f"{n_bytes / MB:,.{digits}f} MB"


def readable(n_bytes: float) -> str:
    """Bytes in the largest decimal unit that keeps a digit before the point: '512 B', '3.4 MB', '13.48 GB'."""
    if abs(n_bytes) >= GB:
        return gb(n_bytes)
    if abs(n_bytes) >= MB:
        return mb(n_bytes)
    if abs(n_bytes) >= KB:
        return f"{n_bytes / KB:,.1f} kB"
    return f"{n_bytes:,.0f} B"
