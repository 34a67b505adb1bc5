"""Requests to models: settings, servers, errors and retries."""
