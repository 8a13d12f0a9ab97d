"""Containers of net files: layouts as data, LEB128, a bounded reader, a writer, our record of the architecture.

Nothing here knows a net. A net (nnue_trainer/nets/) says which layouts its file may have; `reader` and `writer` use
them.
"""
