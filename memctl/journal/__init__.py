"""The journal: the changes of each run, kept for undo in a folder per run.

``runs`` manages the folders.  ``changes`` reads and writes the file with the change of every
message, and ``repairs`` the files with all other repairs.
"""
