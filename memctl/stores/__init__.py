"""The stores, a folder for each layout.  No layout imports another."""
