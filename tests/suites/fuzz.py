"""Runs the drawn tests with one seed after another until the time is over: 2,000 cases once, or `--minutes 60` of other ones."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "property"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="cases of each seed (default: 2000)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin another seed until so many minutes are over (default: one seed)")
    parser.add_argument("--processes", type=int, default=2, help="so many at a time (default: 2)")
    given = parser.parse_args()
    begun, seed, failed = time.monotonic(), given.seed, []
    while seed == given.seed or time.monotonic() - begun < 60 * given.minutes:
        start = time.monotonic()
        options = ["--cases", str(given.cases), "--seed", str(seed), "--timeout", "0", "--quiet"]
        options += ["--numprocesses", str(given.processes)]
        done = subprocess.run([sys.executable, "-m", "pytest", *options, str(FOLDER)], check=False)
        if done.returncode:
            failed.append(seed)
        print(f"seed {seed}: {'failed' if done.returncode else 'clean'}, {time.monotonic() - start:.0f} s", flush=True)
        seed += 1
    print(f"{seed - given.seed} seeds of {given.cases} cases, {time.monotonic() - begun:.0f} s: {failed or 'all clean'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
