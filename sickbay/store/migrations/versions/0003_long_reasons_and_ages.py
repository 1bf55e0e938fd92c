"""Reasons of any length, and an index wherever retention looks for what is old."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

REASONS = ("health_changes", "repairs")
AGES = (("kernel_events", "seen_at"), ("would_have", "at"), ("evidence", "first_at"))


def upgrade() -> None:
    for table in REASONS:
        with op.batch_alter_table(table) as batch:
            batch.alter_column(
                "reason", existing_type=sa.String(256), type_=sa.Text(), existing_nullable=False
            )
    for table, column in AGES:
        op.create_index(f"ix_{table}_{column}", table, [column])


def downgrade() -> None:
    for table, column in AGES:
        op.drop_index(f"ix_{table}_{column}", table_name=table)
    for table in REASONS:
        # A longer reason is cut: the older release could not have written it.
        op.execute(sa.text(f"UPDATE {table} SET reason = substr(reason, 1, 256)"))
        with op.batch_alter_table(table) as batch:
            batch.alter_column(
                "reason", existing_type=sa.Text(), type_=sa.String(256), existing_nullable=False
            )
