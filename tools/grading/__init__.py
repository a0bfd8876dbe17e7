"""Grading a class: what is handed in, graded by nbgrader, kept, written down. ``python -m tools.grade`` starts it."""
