"""Object storage: buckets of Amazon S3 and servers like it, Google Cloud Storage, Azure."""
