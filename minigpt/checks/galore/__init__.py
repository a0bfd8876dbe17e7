"""Judging GaLore: the projection, the step, the bytes of its state, and the rank for a budget."""
