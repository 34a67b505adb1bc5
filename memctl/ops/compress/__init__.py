"""Compress memories: old messages are summarized, and the agent continues with the summary.

``plan_compression`` finds messages to summarize and puts them into a ``Spool``.
``CompressionPipeline`` summarizes them, in chunks if they are long (``ChunkedSummarizer``).
``SummaryCommitter`` commits each memory as an edit.
"""
