"""Tables of other frameworks and of users, by a mapping."""
