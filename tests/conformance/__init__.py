"""One suite that every store passes: the contract of ``memctl/store.py``, tested."""
