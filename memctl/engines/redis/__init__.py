"""Redis: servers, pipelines, locks, memories that are written whole."""
