"""The models: one file a family, each with its configuration, its tensors and its forward pass."""
