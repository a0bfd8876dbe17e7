"""What alignment holds: a step of DPO on the tape, the copies of each method, and the cache of what is generated.

dpo       one step, to the byte, as MiniGPT and trl make it
copies    which models each method has in memory, and which of them are trained
rollouts  the key-value cache of answers that are being generated, and the logits of a batch
"""
