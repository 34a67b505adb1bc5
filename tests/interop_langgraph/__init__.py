"""Real graphs of LangGraph, whose checkpoints memctl prunes: ``make interop``."""
