"""Acts out of band: their journal, leases of shared power, firmware on its way, shared chassis."""

import sqlalchemy as sa
from alembic import op

from sickbay.store.tables import UtcDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SHARED = ("chassis", "power_unit")


def upgrade() -> None:
    for name in SHARED:
        column = sa.Column(name, sa.String(128), nullable=False, server_default="")
        op.add_column("nodes", column)
    op.create_table(
        "operations",
        sa.Column("id", sa.String(256), primary_key=True),
        sa.Column(
            "node",
            sa.String(128),
            sa.ForeignKey("nodes.id", name="fk_operations_node"),
            nullable=False,
        ),
        sa.Column("treatment", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("phase_at", UtcDateTime(), nullable=False),
        sa.Column("witness", sa.Text(), nullable=False),
        sa.Column("memo", sa.JSON(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("outcome", sa.String(16)),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
    )
    op.create_index("ix_operations_node", "operations", ["node"])
    op.create_table(
        "leases",
        sa.Column("holder", sa.String(256), primary_key=True),
        sa.Column("load", sa.String(16), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("rack", sa.String(128), nullable=False),
        sa.Column("power_unit", sa.String(128), nullable=False),
        sa.Column("until_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_leases_rack", "leases", ["rack"])
    op.create_index("ix_leases_power_unit", "leases", ["power_unit"])
    op.create_table(
        "firmware_rollouts",
        sa.Column("node_class", sa.String(128), primary_key=True),
        sa.Column("component", sa.String(128), primary_key=True),
        sa.Column("version", sa.String(128), primary_key=True),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("canary", sa.String(128), nullable=False),
        sa.Column("in_flight", sa.JSON(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.Column("changed_by", sa.String(128), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("firmware_rollouts")
    op.drop_table("leases")
    op.drop_table("operations")
    # Not in a batch: SQLite would make the table anew, and other tables refer to it.
    for name in SHARED:
        op.drop_column("nodes", name)
