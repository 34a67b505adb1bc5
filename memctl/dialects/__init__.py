"""Message formats: how the messages of one framework are written, and what they say.

A store names the dialect of its messages (``Store.dialect``).  Operations see a ``MessageView``
and its blocks, never the JSON of a framework.  ``copy`` between equal dialects never parses.
"""
