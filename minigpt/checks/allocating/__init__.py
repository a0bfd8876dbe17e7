"""Subjects of lab 11: sizes, the best fit, blocks cut and joined, peaks, torch's sentence, and a run made to fit."""
