"""One wing of the ledger: bytes by arithmetic alone. Nothing here imports torch."""
