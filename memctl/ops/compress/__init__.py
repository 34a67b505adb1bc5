"""Compress memories: old messages are summarized, and the agent continues with the summary.

``plan_compression`` finds messages to summarize and puts them into a ``Spool``.
``CompressionPipeline`` summarizes them; ``ChunkedSummarizer`` divides long histories.
``SummaryCommitter`` commits each memory as an edit.
"""
