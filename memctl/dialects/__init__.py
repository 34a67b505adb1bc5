"""Message formats: how to read and write the messages of each framework.

A store names the dialect of its messages (``Store.dialect``).  Operations see a ``MessageView``
and its blocks, never the JSON of a framework.  ``copy`` between equal dialects never parses.
"""
