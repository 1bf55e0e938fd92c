"""Alembic's environment: the connection is given by `sickbay.store.engine.migrate`."""

from alembic import context

from sickbay.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
