"""How long a user waits for an answer that needs no model: `--help`, `--version`, `validate`.

    python benchmarks/startup.py

Run from the repository's root. Prints the fastest and the median of seven processes each.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = (["--version"], ["--help"], ["validate", "configs/quickstart.yaml"], ["schema"])


def seconds(arguments: list[str]) -> float:
    """Return the wall time of one process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tunecli", *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


for command in COMMANDS:
    times = [seconds(command) for _ in range(7)]
    print(f"{' '.join(command):<35} {min(times):.2f} s  {statistics.median(times):.2f} s")
