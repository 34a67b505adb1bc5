"""Texts for people and from people: numbers, values, HTML and spreadsheets."""
