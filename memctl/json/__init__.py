"""JSON: exact values, documents read in pieces, and places in a text."""
