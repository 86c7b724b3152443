"""The Grafana dashboards as data. `make docs` writes them to deploy/grafana/dashboards."""
