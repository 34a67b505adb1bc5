"""What is broken or risky in a store, what that means for its agents, and how to mend it."""
