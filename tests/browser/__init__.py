"""The browser in a terminal."""
