"""Counting parameters and the bytes that stay, are saved, and fit; the truth is the meter's reading of a real step."""
