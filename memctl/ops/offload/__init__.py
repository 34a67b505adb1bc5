"""Offload: large contents of messages in files of their own, and back.

- ``references.py``: how a message refers to a blob.
- ``pieces.py``: cuts contents into pieces, and converts them piece by piece.
- ``slim.py``: takes large contents out of a message, and puts them back.
- ``migrated.py``: puts contents back into messages that were migrated to another dialect.
- ``blobs.py``: the folder of blobs, on a disk or in object storage.
- ``run.py``: the runs of ``memctl offload`` and ``memctl rehydrate``.
- ``prune.py``: removes blobs that no message refers to.
"""
