"""Technology that stores use; it knows no layout."""
