"""The image and the chart on a real Kubernetes of one node, from Debian's packages: `make test-cluster`."""
