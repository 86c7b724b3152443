"""The pieces of finalization: collect the segments, settle what is missing, write the files."""
