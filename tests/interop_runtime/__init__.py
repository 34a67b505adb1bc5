"""memctl and the real services of agentscope-runtime on the same Redis: ``make interop``."""
