"""Autograd on sizes: it knows operations and layers, and no model."""
