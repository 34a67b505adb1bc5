"""Properties of any memory, with hypothesis looking for a counterexample."""
