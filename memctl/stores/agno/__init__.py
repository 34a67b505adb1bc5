"""Agno: sessions in SQL."""
