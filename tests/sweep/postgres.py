"""Start a PostgreSQL server of our own, for tests on many machines and for the chaos test."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Postgres:
    """A running server on a free port, with its data in a new folder below /tmp."""

    def __init__(self, binaries: Path) -> None:
        # Not in a test's folder, which the user postgres may not enter

        folder = Path(subprocess.check_output(["mktemp", "-du", "/tmp/pflsweep-postgres-XXXXXX"], text=True).strip())
        self.binaries, self.folder, self.port = binaries, folder, free_port()
        folder.mkdir(mode=0o755)
        self._user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._user:
            shutil.chown(folder, "postgres")
        self._call("initdb", "-D", folder / "data", "-U", "lab", "-A", "trust", "-N")
        self.start()

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._call("pg_ctl", "-D", self.folder / "data", "-o", options, "-l", self.folder / "log", "-w", "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-D", self.folder / "data", "-m", "fast", "-w", "stop")

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.folder)

    @contextmanager
    def away(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def database(self, name: str) -> str:
        """Create a new, empty database, and return its URL."""
        self._call("createdb", "-h", self.folder, "-p", self.port, "-U", "lab", name)
        return f"postgresql://lab@127.0.0.1:{self.port}/{name}"

    def _call(self, program: str, *arguments: object) -> None:
        command = [*self._user, str(self.binaries / program), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def binaries() -> Path | None:
    """Return the folder of the newest server's programs, where Debian or the system has them."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin: float(bin.parent.name))
    if asked := shutil.which("pg_config"):
        places.append(Path(subprocess.check_output([asked, "--bindir"], text=True).strip()))
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)
