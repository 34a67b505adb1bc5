"""The page of ``memctl report``, and its charts."""
