"""Judging what a student wrote about activations: a meter, formulas, accumulation, a checkpoint, a loss in chunks."""
