"""Building blocks for stores, also for stores of plugins."""
