"""Compressing memories: old messages are summarized, and the agent goes on from the summary.

``scan`` finds what is to be summarised and puts it into a ``spool``; ``work`` has it summarised,
in ``parts`` where it is long, and commits each memory as an edit (``edits``).
"""
