"""The fuzzer: mutated stores, configurations, command lines and journals for every command.

``python -m tests.fuzz --minutes 10 --seed 7`` runs it, as ``make fuzz`` does.  See ``__main__``.
"""
