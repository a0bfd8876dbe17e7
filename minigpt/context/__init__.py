"""What a long context makes one do to the data: fewer words, fewer tokens of a document, no padding between examples.

    vocabulary  drop words from a byte-level BPE tokenizer and from a model's embedding and head
    truncation  cut a long document to a budget of tokens, the older its part the shorter
    packing     several examples in one row, told apart by their positions, in place of padding
    patching    which names of transformers Liger and Unsloth replace, and what is left where both do

None of these is about attention's own memory: lessons 05 and 13 measure that, and ``minigpt.memory`` predicts it.
"""

from minigpt.context.packing import pack, packed_row
from minigpt.context.truncation import keep, spans, truncate
from minigpt.context.vocabulary import renumber, slice_model, slice_tokenizer

__all__ = ["keep", "pack", "packed_row", "renumber", "slice_model", "slice_tokenizer", "spans", "truncate"]
