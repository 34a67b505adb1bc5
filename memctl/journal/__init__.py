"""What runs have changed, kept so that it can be put back: a folder a run.

``runs`` knows the folders, ``changes`` the file in them that says what became of every message.
"""
