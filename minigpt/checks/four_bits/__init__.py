"""Weights in 4 bits: the table, the codes, their packing, double quantization, the bytes. The truth is bitsandbytes."""
