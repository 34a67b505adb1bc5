"""Tests of the decisions of compress, without any store or model."""
