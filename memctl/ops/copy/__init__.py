"""The copy of memories from a store to another, and the comparison of two stores."""
