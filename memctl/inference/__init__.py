"""Models that memctl asks: their settings, servers, errors and retries."""
