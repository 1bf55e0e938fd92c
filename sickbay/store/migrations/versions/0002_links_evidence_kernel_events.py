"""Links between tables, the index of evidence, kernel records already seen."""

import sqlalchemy as sa
from alembic import op

from sickbay.store.tables import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

OF_NODE = ("parts", "holds", "gate_intervals", "health_changes", "returns")
LINE_OF_TICKET = "fk_ticket_lines_ticket"


def upgrade() -> None:
    op.create_table(
        "evidence",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("first_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "kernel_events",
        sa.Column("boot_id", sa.String(64), primary_key=True),
        sa.Column("monotonic_us", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("message_sha256", sa.String(64), primary_key=True),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
    )
    for table in OF_NODE:
        with op.batch_alter_table(table) as batch:
            batch.create_foreign_key(f"fk_{table}_node", "nodes", ["node"], ["id"])
    with op.batch_alter_table("ticket_lines") as batch:
        batch.create_foreign_key(LINE_OF_TICKET, "tickets", ["ticket"], ["id"])


def downgrade() -> None:
    with op.batch_alter_table("ticket_lines") as batch:
        batch.drop_constraint(LINE_OF_TICKET, type_="foreignkey")
    for table in OF_NODE:
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"fk_{table}_node", type_="foreignkey")
    op.drop_table("kernel_events")
    op.drop_table("evidence")
