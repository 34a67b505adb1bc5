"""The journal of what runs have changed, kept for undo: a folder a run.

``runs`` knows the folders, ``changes`` the file in them that records the change of every
message, and ``repairs`` that of the other repairs.
"""
