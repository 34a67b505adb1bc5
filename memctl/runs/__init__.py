"""Runs that write to a store: checked, locked, recorded for undo, carried out.

``memctl.api`` and the commands share them.  A command hands its output over as the observer, and
asks between the plan and the change; a program is asked nothing.
"""
