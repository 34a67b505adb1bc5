"""The operations of memctl, on any store: checked, locked, recorded for undo, carried out.

``memctl.api`` and the commands share them.  They know neither terminal nor driver: what there is to
show goes to an ``Observer``, and a command that asks does so between the plan and the change.
"""
