"""Building blocks for stores, those of plugins too."""
