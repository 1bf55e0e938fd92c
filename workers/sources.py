"""Where signals come from: the nodes' own pages or Prometheus, with the journals beside them."""

import re
import ssl
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from sickbay.adapters.exporter_pages import ExporterPages
from sickbay.adapters.journal_gateway import JournalGateway
from sickbay.adapters.node_signals import NodeSignals
from sickbay.adapters.prometheus import PrometheusPages, Queries
from sickbay.adapters.pushed_signals import WithPushes
from sickbay.errors import UsageError
from sickbay.ports import SignalSource
from sickbay.readers.prometheus import LabelMap
from sickbay.rules import read_rules
from sickbay.scoring.ruleset import load_ruleset
from sickbay.secret_refs import read_secret
from sickbay.settings import Settings
from sickbay.source_settings import PrometheusSettings
from sickbay.store.pushes import StorePushes
from workers.process import utc_now

AT_ONCE = 4
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def exporter_pages(
    base_url: str, *, http: httpx.AsyncClient, nodes: Sequence[str]
) -> ExporterPages:
    """The reader of each node's own page."""
    urls = {node: f"{base_url}/nodes/{node}/metrics" for node in nodes}
    return ExporterPages(urls, client=http, at_once=AT_ONCE)


def signals_of(
    settings: Settings,
    *,
    base_url: str,
    http: httpx.AsyncClient,
    nodes: Sequence[str],
    inbox: StorePushes,
) -> SignalSource:
    """The source the scorer reads: Prometheus where one is named, else the nodes' own pages.

    What is pushed comes on top, where something listens for it.

    Raises:
        UsageError: the access to Prometheus cannot be made from the settings.
    """
    rules = load_ruleset(read_rules(settings.rules))
    read = _read_signals(
        settings, base_url=base_url, http=http, nodes=nodes, metrics=rules.metric_names()
    )
    if not settings.push.port:
        return read
    return WithPushes(
        read,
        inbox=inbox,
        metric_of={rule.name: rule.metrics[0] for rule in rules.signals if rule.metrics},
        clock=utc_now,
        fresh_s=settings.push.fresh_s,
        back_s=rules.times.event_window_s,
    )


def _read_signals(
    settings: Settings,
    *,
    base_url: str,
    http: httpx.AsyncClient,
    nodes: Sequence[str],
    metrics: Collection[str],
) -> NodeSignals:
    journal = JournalGateway(
        {n: f"{base_url}/nodes/{n}/entries" for n in nodes}, client=http, at_once=AT_ONCE
    )
    if not settings.prometheus.url:
        pages = exporter_pages(base_url, http=http, nodes=nodes)
        return NodeSignals(pages.read, entries=journal.read, clock=utc_now)
    remembered = prometheus_pages(settings.prometheus, metrics=sorted(metrics))
    return NodeSignals(
        remembered.read, entries=journal.read, clock=utc_now, past=remembered.read_window
    )


def prometheus_pages(settings: PrometheusSettings, *, metrics: Sequence[str]) -> PrometheusPages:
    """Pages out of Prometheus, with the access the settings name.

    Its HTTP client lives as long as the process.

    Raises:
        UsageError: a secret or a certificate cannot be read, or a secret would go in the clear.
    """
    queries = Queries(
        settings.url,
        client=prometheus_client(settings),
        at_once=settings.at_once,
        timeout_s=settings.timeout_s,
    )
    labels = LabelMap(
        node=settings.node_labels,
        node_pattern=re.compile(settings.node_pattern),
        uuid=settings.uuid_labels,
        index=settings.index_labels,
        bus_id=settings.bus_id_labels,
    )
    return PrometheusPages(
        queries,
        metrics=metrics,
        named=settings.metrics,
        matcher=settings.matcher,
        labels=labels,
        stale_after_s=settings.stale_after_s,
    )


def prometheus_client(settings: PrometheusSettings) -> httpx.AsyncClient:
    """An HTTP client with the access of the settings. Raises `UsageError`."""
    token = read_secret(file=settings.token_file, env=settings.token_env, field="prometheus.token")
    password = read_secret(
        file=settings.password_file, env=settings.password_env, field="prometheus.password"
    )
    where = urlsplit(settings.url)
    if (token or password) and where.scheme != "https" and where.hostname not in LOOPBACK:
        raise UsageError(
            f"prometheus.url: a secret would go to {where.hostname} in the clear",
            field="prometheus.url",
            remedy="use https, or no token and no password",
        )
    if (password is None) == bool(settings.user):
        raise UsageError(
            "prometheus: a user and a password go together",
            field="prometheus.user",
            remedy="give prometheus.user and one of password_file and password_env, or neither",
        )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    auth = httpx.BasicAuth(settings.user, password) if password is not None else None
    limits = httpx.Limits(max_connections=settings.at_once)
    return httpx.AsyncClient(
        headers=headers, auth=auth, verify=_tls(settings), limits=limits, trust_env=False
    )


def _tls(settings: PrometheusSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.cert_file is not None:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except (OSError, ssl.SSLError) as error:
        files: list[Path | None] = [settings.ca_file, settings.cert_file, settings.key_file]
        named = ", ".join(str(f) for f in files if f is not None)
        raise UsageError(
            f"prometheus: the certificates ({named}) cannot be used: {error}",
            field="prometheus.ca_file",
            remedy="name readable PEM files; key_file belongs to cert_file",
        ) from error
    return context
