"""Tables of what comes from outside by itself: pushes, and the rule sets people activate."""

from sqlalchemy import JSON, BigInteger, Column, Float, Integer, String, Table, Text

from sickbay.store.tables import UtcDateTime, metadata

pushed_events = Table(
    "pushed_events",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("node", String(128), nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("monotonic_us", BigInteger, nullable=False),
    Column("message", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("received_at", UtcDateTime, nullable=False, index=True),
)

# The newest reading of each signal of each part; a history of them is a time series database's.
pushed_signals = Table(
    "pushed_signals",
    metadata,
    Column("node", String(128), primary_key=True),
    Column("part", String(128), primary_key=True),
    Column("signal", String(128), primary_key=True),
    Column("id", String(128), nullable=False),
    Column("value", Float),
    Column("labels", JSON, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("received_at", UtcDateTime, nullable=False, index=True),
)

rule_sets = Table(
    "rule_sets",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("version", String(128), nullable=False),
    Column("content", JSON, nullable=False),
    Column("added_at", UtcDateTime, nullable=False),
    Column("added_by", String(128), nullable=False),
)

# One row per change, never altered: which rule set counts is the newest row of its role.
rule_changes = Table(
    "rule_changes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("by", String(128), nullable=False),
    Column("approved_by", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("replayed", JSON, nullable=False),
)

rule_exceptions = Table(
    "rule_exceptions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("node", String(128), nullable=False, index=True),
    Column("signal", String(128), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("until_at", UtcDateTime, nullable=False),
    Column("by", String(128), nullable=False),
    Column("reason", Text, nullable=False),
)

# Where each node last stood otherwise under a shadow rule set.
shadow_differences = Table(
    "shadow_differences",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("node", String(128), primary_key=True),
    Column("active", String(16), nullable=False),
    Column("shadow", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)
