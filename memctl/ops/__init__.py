"""The operations of memctl, on any store: checked, locked, recorded for undo, carried out.

``memctl.api`` and the commands share the operations.  An operation uses neither terminal nor
driver: an ``Observer`` shows progress and warnings, and a command that asks the user does so
between the plan and the change.
"""
