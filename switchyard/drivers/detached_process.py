"""Run a process whose output and exit code are files in a folder, so that any process can follow it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from switchyard.drivers import processes

OUTPUT = "output.log"
EXIT = "exit"
READ_BYTES = 1 << 20

# Passes SIGTERM on, and writes the exit code into a file: only a parent could ask the system for it.
_RECORD_EXIT = """
exit_file=$1; shift
"$@" & child=$!
trap 'kill -TERM $child 2>/dev/null' TERM INT HUP
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
echo $code > "$exit_file.new" && mv "$exit_file.new" "$exit_file"
exit $code
"""


def start_detached(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a new session. The command must name the folder, by which `DetachedProcess` recognises it."""
    recording = ["/bin/sh", "-c", _RECORD_EXIT, "switchyard", str(folder / EXIT), *command]
    return processes.launch(recording, None, folder / OUTPUT, environment)


class DetachedProcess:
    """Like `subprocess.Popen`, for a process that is not our child: `pid`, `poll()`, `returncode`."""

    def __init__(self, folder: Path, session: int) -> None:
        self.folder = folder
        self.pid = session
        self.returncode: int | None = None
        self._place = 0

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._read_exit()
        if self.returncode is None and not self._is_there():
            code = self._read_exit()
            # Without a code, the whole session was killed.
            self.returncode = -signal.SIGKILL if code is None else code
        return self.returncode

    def read_lines(self) -> list[str]:
        """Return whole lines that were written since the last call; after the end also an unfinished one."""
        try:
            with (self.folder / OUTPUT).open("rb") as output:
                if output.seek(0, os.SEEK_END) < self._place:
                    # Maintenance has emptied a long log.
                    self._place = 0
                output.seek(self._place)
                new = output.read(READ_BYTES)
        except FileNotFoundError:
            return []
        is_last = self.returncode is not None and len(new) < READ_BYTES
        whole = new if is_last else new[: new.rfind(b"\n") + 1]
        # A line longer than one read is shown in parts; else it would never be shown.
        new = whole if len(new) < READ_BYTES else whole or new
        self._place += len(new)
        return new.decode(errors="replace").splitlines()

    def _read_exit(self) -> int | None:
        try:
            return int((self.folder / EXIT).read_text())
        except (OSError, ValueError):
            return None

    def _is_there(self) -> bool:
        commands = [processes.read_command(member.pid) for member in processes.find_members([self.pid])]
        # A process without a command line is just being started.
        return any(not command or str(self.folder) in command for command in commands)

    def end(self) -> None:
        """Kill the process with all that it has started."""
        members = processes.find_members([self.pid])
        # The system may have given the pid to another session since, which does not name the folder.
        if any(str(self.folder) in processes.read_command(member.pid) for member in members):
            processes.send(members, signal.SIGKILL)
