"""Tests of whole stacks whose backends are servers of other projects."""
