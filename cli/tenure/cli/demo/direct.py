"""The same figures, computed directly: run as a program of its own, without Tenure.

Reads lines of JSON ``[path, size, modified_nanoseconds]`` from standard input; writes for each a
line ``{"changed": bool, "sha256": …, "size_bytes": …, "lines": …}``. A file that is not as the
list says, before or after it was read, is ``changed`` and has no figures.
"""

import hashlib
import json
import os
import sys


def state(path: str) -> tuple[int, int] | None:
    """Size and time of a regular file; None when it is gone or something else now."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def main() -> None:
    """Answer line by line."""
    for line in sys.stdin:
        path, size, modified = json.loads(line)
        answer: dict[str, object] = {"changed": True}
        if state(path) == (size, modified):
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except OSError:
                data = None
            if data is not None and state(path) == (size, modified):
                answer = {
                    "changed": False,
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "size_bytes": len(data),
                    "lines": data.count(b"\n"),
                }
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
