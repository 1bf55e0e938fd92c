"""Metrics pages of nodes out of Prometheus, and of what speaks its HTTP API."""

from sickbay.adapters.prometheus.pages import PrometheusPage, PrometheusPages
from sickbay.adapters.prometheus.queries import Queries

__all__ = ["PrometheusPage", "PrometheusPages", "Queries"]
