"""Alibaba Cloud Tablestore: instances, rows, indexes."""
