"""The activities that copy the files of ended batches to other buckets."""
