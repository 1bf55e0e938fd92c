"""The tables, in types that SQLite and PostgreSQL share."""

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)


class UtcDateTime(TypeDecorator[datetime]):
    """UTC-aware datetimes in, UTC-aware datetimes out, on every database."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive datetime; store UTC."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value}: the store keeps UTC only")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give UTC back."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(TypeDecorator[str]):
    """Text of any length, also what a broken tool printed.

    PostgreSQL stores neither a NUL nor half a character: each becomes the replacement character, so
    that no output of a tool keeps a repair's step from being booked.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what no database keeps."""
        del dialect
        return None if value is None else storable(value)


def storable(text: str) -> str:
    """The text as every database can keep it."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole.replace("\x00", "\N{REPLACEMENT CHARACTER}")


metadata = MetaData()


def _of_node(table: str) -> ForeignKey:
    """History belongs to a node on record; a row about an unknown node is refused."""
    return ForeignKey("nodes.id", name=f"fk_{table}_node")


nodes = Table(
    "nodes",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("pool", String(128), nullable=False, index=True),
    Column("node_group", String(128), nullable=False),
    Column("rack", String(128), nullable=False),
    Column("node_class", String(128), nullable=False),
    Column("chassis", String(128), nullable=False, server_default=""),
    Column("power_unit", String(128), nullable=False, server_default=""),
    Column("added_at", UtcDateTime, nullable=False),
    Column("gate_open", Boolean, nullable=False),
    Column("gate_since", UtcDateTime, nullable=False),
    Column("last_return_at", UtcDateTime),
)

parts = Table(
    "parts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("node", String(128), _of_node("parts"), nullable=False, index=True),
    Column("slot", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("uuid", String(128), nullable=False, index=True),
    Column("serial", String(128), nullable=False),
    Column("bus_id", String(32), nullable=False),
    Column("from_at", UtcDateTime, nullable=False),
    Column("until_at", UtcDateTime),
)

holds = Table(
    "holds",
    metadata,
    Column("row", Integer, primary_key=True),
    Column("id", String(256), nullable=False, index=True),
    Column("node", String(128), _of_node("holds"), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("mark", String(256), nullable=False),
    Column("reason", Words, nullable=False),
    Column("placed_at", UtcDateTime, nullable=False),
    Column("release_condition", Words, nullable=False),
    Column("next_step", Words, nullable=False),
    Column("deadline", UtcDateTime),
    Column("repair_id", String(256)),
    Column("lifted_at", UtcDateTime),
    Column("lifted_by", String(128)),
)

gate_intervals = Table(
    "gate_intervals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("node", String(128), _of_node("gate_intervals"), nullable=False, index=True),
    Column("open", Boolean, nullable=False),
    Column("from_at", UtcDateTime, nullable=False),
    Column("until_at", UtcDateTime),
)

health_changes = Table(
    "health_changes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("node", String(128), _of_node("health_changes"), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("value", Float),
    Column("confidence", Float, nullable=False),
    Column("worst", String(32)),
    Column("reason", Words, nullable=False),
    Column("signal", String(128)),
    Column("part", String(64)),
    Column("detail", Words, nullable=False),
    Column("standing", String(16), nullable=False),
    Column("standing_since", UtcDateTime, nullable=False),
    Column("rules", String(128), nullable=False),
    Index("ix_health_node_at", "node", "id"),
)

repairs = Table(
    "repairs",
    metadata,
    Column("repair_id", String(256), primary_key=True),
    Column("workflow_id", String(256), nullable=False),
    Column("node", String(128), nullable=False, index=True),
    Column("pool", String(128), nullable=False),
    Column("stage", String(32), nullable=False),
    Column("stage_since", UtcDateTime, nullable=False),
    Column("reason", Words, nullable=False),
    Column("severity", String(16), nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("part", String(128), nullable=False),
    Column("category", String(32), nullable=False),
    Column("next_step", Words, nullable=False),
    Column("deadline", UtcDateTime),
    Column("confirmed", Boolean),
    Column("cured_by", String(32)),
    Column("ending", String(32), index=True),
    Column("ended_at", UtcDateTime),
    Column("ended_by", String(128), nullable=False),
    Column("paused_by", String(128)),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("repair_id", String(256), nullable=False),
    Column("node", String(128), nullable=False, index=True),
    Column("ordinal", Integer, nullable=False),
    Column("stage", String(32), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime, nullable=False),
    Column("detail", Words, nullable=False),
    Column("operation_id", String(256), nullable=False),
    Column("treatment", String(32)),
    Column("part", String(128), nullable=False),
    Column("category", String(32), nullable=False),
    Column("evidence", JSON, nullable=False),
    UniqueConstraint("repair_id", "ordinal"),
)

returns = Table(
    "returns",
    metadata,
    Column("repair_id", String(256), primary_key=True),
    Column("node", String(128), _of_node("returns"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
)

permits = Table(
    "permits",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", String(128), nullable=False, index=True),
    Column("repair_id", String(256), nullable=False),
    Column("node", String(128), nullable=False),
    Column("event", String(32), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("detail", Words, nullable=False),
    UniqueConstraint("pool", "repair_id", "event", "at"),
)

tickets = Table(
    "tickets",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(512), nullable=False, unique=True),
    Column("node", String(128), nullable=False, index=True),
    Column("pool", String(128), nullable=False),
    Column("rack", String(128), nullable=False),
    Column("slot", String(64), nullable=False),
    Column("part_uuid", String(128), nullable=False),
    Column("part_serial", String(128), nullable=False),
    Column("category", String(32), nullable=False),
    Column("title", Words, nullable=False),
    Column("body", Words, nullable=False),
    Column("repair_id", String(256), nullable=False),
    Column("evidence", JSON, nullable=False),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    Column("reopened", Integer, nullable=False),
)

ticket_lines = Table(
    "ticket_lines",
    metadata,
    Column("id", Integer, primary_key=True),
    Column(
        "ticket",
        Integer,
        ForeignKey("tickets.id", name="fk_ticket_lines_ticket"),
        nullable=False,
        index=True,
    ),
    Column("at", UtcDateTime, nullable=False),
    Column("text", Words, nullable=False),
)

pages = Table(
    "pages",
    metadata,
    Column("key", String(512), primary_key=True),
    Column("pool", String(128), nullable=False, index=True),
    Column("node", String(128)),
    Column("summary", Words, nullable=False),
    Column("detail", Words, nullable=False),
    Column("urgent", Boolean, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("first_at", UtcDateTime, nullable=False),
    Column("last_at", UtcDateTime, nullable=False),
    Column("repeats", Integer, nullable=False),
)

would_have = Table(
    "would_have",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("node", String(128), nullable=False),
    Column("pool", String(128), nullable=False),
    Column("action", String(32), nullable=False),
    Column("detail", Words, nullable=False),
    Column("why", String(32), nullable=False),
)

stops = Table(
    "stops",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", String(128)),
    Column("by", String(128), nullable=False),
    Column("reason", Words, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("lifted_at", UtcDateTime),
    Column("lifted_by", String(128)),
)

epochs = Table(
    "epochs",
    metadata,
    Column("pool", String(128), primary_key=True),
    Column("epoch", Integer, nullable=False),
)

evidence = Table(
    "evidence",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("first_at", UtcDateTime, nullable=False, index=True),
)

kernel_events = Table(
    "kernel_events",
    metadata,
    Column("boot_id", String(64), primary_key=True),
    Column("monotonic_us", BigInteger, primary_key=True, autoincrement=False),
    Column("message_sha256", String(64), primary_key=True),
    Column("seen_at", UtcDateTime, nullable=False, index=True),
)

operations = Table(
    "operations",
    metadata,
    Column("id", String(256), primary_key=True),
    Column("node", String(128), _of_node("operations"), nullable=False, index=True),
    Column("treatment", String(32), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("phase", String(32), nullable=False),
    Column("phase_at", UtcDateTime, nullable=False),
    Column("witness", Text, nullable=False),
    Column("memo", JSON, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("outcome", String(16)),
    Column("detail", Text, nullable=False),
    Column("finished_at", UtcDateTime),
)

leases = Table(
    "leases",
    metadata,
    Column("holder", String(256), primary_key=True),
    Column("load", String(16), nullable=False),
    Column("node", String(128), nullable=False),
    Column("rack", String(128), nullable=False, index=True),
    Column("power_unit", String(128), nullable=False, index=True),
    Column("until_at", UtcDateTime, nullable=False),
)

firmware_rollouts = Table(
    "firmware_rollouts",
    metadata,
    Column("node_class", String(128), primary_key=True),
    Column("component", String(128), primary_key=True),
    Column("version", String(128), primary_key=True),
    Column("stage", String(16), nullable=False),
    Column("canary", String(128), nullable=False),
    Column("in_flight", JSON, nullable=False),
    Column("why", Text, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Column("changed_by", String(128), nullable=False),
)
