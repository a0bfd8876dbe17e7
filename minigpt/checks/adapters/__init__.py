"""LoRA: a layer, merging it, putting it into a model, and counting it. The truths are peft's and the meter's."""
