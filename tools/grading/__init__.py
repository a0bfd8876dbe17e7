"""Grading: what a submission goes through, from the folder that came in to its points."""
