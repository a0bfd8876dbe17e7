"""Subjects of lab 14: what a model and its data need by hand, and what a plan achieves on a card."""
