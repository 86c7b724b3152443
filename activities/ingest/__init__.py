"""The pieces of ingestion: spool the input, scan its lines, publish the plans."""
