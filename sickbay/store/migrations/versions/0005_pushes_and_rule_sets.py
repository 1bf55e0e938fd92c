"""What is pushed, and the rule sets with who activated them."""

import sqlalchemy as sa
from alembic import op

from sickbay.store.tables import UtcDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = ("shadow_differences", "rule_exceptions", "rule_changes", "rule_sets", "pushed_signals", "pushed_events")


def upgrade() -> None:
    op.create_table(
        "pushed_events",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("monotonic_us", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("received_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_pushed_events_received_at", "pushed_events", ["received_at"])
    op.create_table(
        "pushed_signals",
        sa.Column("node", sa.String(128), primary_key=True),
        sa.Column("part", sa.String(128), primary_key=True),
        sa.Column("signal", sa.String(128), primary_key=True),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("value", sa.Float()),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("received_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_pushed_signals_received_at", "pushed_signals", ["received_at"])
    _rules()


def _rules() -> None:
    op.create_table(
        "rule_sets",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("added_at", UtcDateTime(), nullable=False),
        sa.Column("added_by", sa.String(128), nullable=False),
    )
    op.create_table(
        "rule_changes",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("approved_by", sa.String(128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("replayed", sa.JSON(), nullable=False),
    )
    op.create_table(
        "rule_exceptions",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("signal", sa.String(128), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("until_at", UtcDateTime(), nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_index("ix_rule_exceptions_node", "rule_exceptions", ["node"])
    op.create_table(
        "shadow_differences",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(128), primary_key=True),
        sa.Column("active", sa.String(16), nullable=False),
        sa.Column("shadow", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
    )


def downgrade() -> None:
    for name in TABLES:
        op.drop_table(name)
