"""Archives in object storage against local archives and against the transfer alone.

    python -m benchmarks.objects --messages 1000000

Starts ``rclone serve s3`` on this machine, as tests do.  The transfer alone is ``rclone copyto``
of the same archive to and from the same server.  Nothing is verified after a copy.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Run, machine, run
from tests.support.servers.objects import KEY_ID, SECRET, Objects, environment, rclone


def main() -> None:
    """Measure, and print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--extension", default=".ndjson.zst")
    chosen = parser.parse_args()
    os.environ |= environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"XDG_STATE_HOME": name, "XDG_CONFIG_HOME": name}
        bucket = Objects(folder).fresh()
        source, local = folder / "source.db", folder / f"local{chosen.extension}"
        dataset.make(source, chosen.messages)
        url = bucket.url(f"archive{chosen.extension}")
        print(machine("obstore"))
        to_file = _memctl("migrate", source, local, "--no-verify", "--no-backup")
        size = local.stat().st_size
        print(f"{chosen.messages:,} messages, an archive of {size / 1e6:,.0f} MB")
        remote = (
            f":s3,provider=Other,access_key_id={KEY_ID},secret_access_key='{SECRET}',"
            f"endpoint='{bucket.endpoint}':{bucket.name}/alone{chosen.extension}"
        )
        quiet = ("--config", str(folder / "none.conf"))
        up = run([rclone(), "copyto", *quiet, str(local), remote])
        to_object = _memctl("migrate", source, url, "--no-verify", "--no-backup")
        _show("write", to_file, up, to_object)
        from_file = _memctl("inspect", local)
        down = run([rclone(), "copyto", *quiet, remote, str(folder / "down")])
        from_object = _memctl("inspect", url)
        _show("read", from_file, down, from_object)


def _show(what: str, local: Run, transfer: Run, found: Run) -> None:
    ratio = found.seconds / (local.seconds + transfer.seconds)
    print(
        f"{what}: local {local.seconds:.1f} s ({local.peak:.0f} MiB), transfer "
        f"{transfer.seconds:.1f} s, object {found.seconds:.1f} s ({found.peak:.0f} MiB): "
        f"{ratio:.2f} of the sum"
    )


def _memctl(*words: object) -> Run:
    return run([sys.executable, "-m", "memctl", *map(str, words)])


if __name__ == "__main__":
    main()
