"""Grafana's dashboards as code: `python -m compose.grafana.build` writes them."""
