"""The browser of a store in a terminal: ``memctl browse``.

It changes nothing.  ``app.Browser`` is the application.  Only ``commands/browse.py`` imports this
package, because Textual takes time to load.

A screen is a list on the left (``pane.ListPane``); a conversation or a text is on the right.
``screens.SCREENS`` names the screens by their keys, 1 to 5, with what makes their lists from a
``Setting`` (the source, the catalogue, the signs).  A list says what it wants by messages of
``Pane``: to open a memory at a message (``Opened``), to show a text on the right (``Described``),
to ask for a line of text (``Asked``), to tell something in the status line (``Told``), to go back
(``Left``).  ``entered`` is called when it is shown, and ``read_anew`` for the key r.  To read the
store, it opens a ``Reader`` of its own (``setting.source.reader()``) in a worker of Textual
(``run_worker``), and closes it when the worker ends.
"""
