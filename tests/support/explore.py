"""``make explore``: explore the long scenes too; ``--floor`` writes down how much is explored."""

import argparse
import json
import sys
from pathlib import Path
from time import process_time

from tests.support.exploration import explore
from tests.support.scene_list import LONG_SCENES, SCENES

FLOOR = Path(__file__).parents[1] / "exhaustive" / "floor.json"


def main() -> None:
    """Explore scene by scene, and say how much each has."""
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__)
    parser.add_argument("--floor", action="store_true", help="the short scenes, for floor.json")
    only_floor: bool = parser.parse_args().floor
    floor = {}
    for scene in SCENES if only_floor else (*SCENES, *LONG_SCENES):
        started = process_time()
        found = explore(scene)
        floor[scene.name] = {"situations": found.situations, "decisions": found.decisions}
        sys.stdout.write(
            f"{scene.name:40} {found.situations:9,} situations {found.decisions:11,} decisions"
            f" {found.commits:10,} commits {process_time() - started:7.1f} s\n"
        )
        sys.stdout.flush()
    if only_floor:
        FLOOR.write_text(json.dumps(floor, indent=2) + "\n")


if __name__ == "__main__":
    main()
