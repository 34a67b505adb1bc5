"""The browser of a store in a terminal: ``memctl browse``.

``app.Browser`` is the application.  Only ``commands/browse.py`` imports this package, because
Textual takes time to load.

``actions.ACTIONS`` lists what changes the store, for ``browse --write``.  An action is about what
a pane returns from ``selected``; the application asks what it wants to know, runs it in a thread,
tells its end, and reads the store anew.

A screen is a list on the left (``pane.ListPane``, or ``pane.Folded`` with groups); a conversation
or a text is on the right.  ``screens.SCREENS`` names the lists by their keys, 1 to 5.  A list draws
its rows, has the source and the catalogue, and asks the application by messages of ``Pane``: to
open a memory at a message (``Opened``), to show a text on the right (``Described``), to ask for a
line of text (``Asked``), to tell something in the status line (``Told``), to go back (``Left``).
``entered`` is called when it is shown, and ``read_anew`` for the key r.  To read the store, it
opens a ``Reader`` of its own (``source.reader()``) in a worker of Textual (``run_worker``), and
waits for it in ``wait_for``, which closes it.
"""
