"""The operations that change messages of a store, and the run that carries them out."""
