"""MiniGPT and the memory ledger: the package that the course's notebooks import.

Import from the modules: ``from minigpt.model import GPT``, ``from minigpt.memory import predict``.
"""
