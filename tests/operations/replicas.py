"""PostgreSQL with a primary server and a standby server that replicates it, as operators run them."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from batchwright.database.driver import connect
from batchwright.starter.embedded_stack.postgres import installation
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres

_FAST = {"fsync": "off", "full_page_writes": "off"}


class Replicated:
    """A primary server and a standby server. A commit waits until the standby server has it.

    Other operating-system users must be able to enter `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.primary = EmbeddedPostgres(folder / "primary", settings=_FAST)
        self.standby = EmbeddedPostgres(folder / "standby", settings=_FAST)

    async def start(self) -> None:
        self.primary.start()
        _copy(self.primary, self.standby)
        self.standby.start()
        # After the copy: once it leads, the standby has none to wait for.
        await _execute(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await _execute(self.primary, "SELECT pg_reload_conf()")

    async def lose_the_primary(self) -> None:
        """Kill all processes of the primary server, and make the standby server the new primary."""
        os.killpg(self.primary.pid, signal.SIGKILL)
        await _execute(self.standby, "SELECT pg_promote(wait => true)")

    def stop(self) -> None:
        self.standby.stop()
        self.primary.stop()


def _copy(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    runner = installation.find_server_user("nobody")
    installation.prepare_directory(standby.root, runner)
    binaries = installation.runnable_binaries(installation.find_binaries(), runner)
    subprocess.run(
        [
            *(binaries / "pg_basebackup", "--pgdata", standby.data, "--dbname", primary.dsn),
            *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"),
        ],
        check=True,
        cwd="/",
        user=runner.uid,
        group=runner.gid,
        extra_groups=runner.groups,
    )
    shutil.copy2(primary.root / "password", standby.root / "password")


async def _execute(server: EmbeddedPostgres, sql: str) -> None:
    connection = await connect(server.dsn)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
