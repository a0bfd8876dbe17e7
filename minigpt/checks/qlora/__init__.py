"""QLoRA: put together from the course's parts, counted on the real libraries, and configured for them."""
