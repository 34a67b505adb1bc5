"""Object storage: buckets of Amazon S3 and servers like it, Google Cloud Storage, Azure."""

limit = 600.0
"""The seconds that a bucket may take for an answer that is not the content of an object.

``--timeout`` sets it.
"""
