"""Tests of the image and the Helm chart on a real Kubernetes with one node, from Debian's packages.

`make test-cluster` runs them.
"""
