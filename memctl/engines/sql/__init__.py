"""SQL databases: connections, transactions, errors, run locks, columns."""
