"""Whether trials of reported faults run at the figures of the report (``make trials-as-stated``),
and not at smaller ones that show the same in less time."""

import os
from typing import Final

AS_STATED: Final = os.environ.get("TENURE_TEST_AS_STATED") == "1"
