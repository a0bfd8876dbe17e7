"""Subjects of lab 12: shards, a step of ZeRO-1, a gathered layer, the bytes of a rank, and fully_shard."""
