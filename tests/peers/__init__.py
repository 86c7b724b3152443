"""Tests of the whole stack with servers of other projects as backends."""
