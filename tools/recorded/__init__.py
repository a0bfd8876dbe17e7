"""Programmes whose requests for memory were recorded on real GPUs, told from configuration alone."""
