"""Workload profiles: what a task is submitted under, and the digest that stands for it.

The digest covers the whole declaration, schemas included, and for one that matches exactly the
executable too. Executors, coordinators and the command line compute the same.
"""

from hashlib import sha256

from tenure.contract.codec import canonical_text
from tenure.contract.reports import Executable, TaskTypeDeclaration
from tenure.contract.states import Match


def profile_text(declaration: TaskTypeDeclaration, executable: Executable | None) -> str:
    """What the digest is of: JSON, one text for equal profiles.

    Sets are sorted, so that their order in a declaration does not matter. Raises ValueError for a
    declaration that matches exactly when the executable is not known: nothing could be compared.
    """
    if declaration.match is Match.EXACT and executable is None:
        raise ValueError(f"{declaration.name}: match is exact, and no executable is stated")
    value = declaration.model_dump(mode="json")
    requirements = value["requirements"]
    for name in ("locations", "networks"):
        if requirements[name] is not None:
            requirements[name] = sorted(set(requirements[name]))
    if declaration.match is Match.EXACT:
        value["executable"] = executable and executable.model_dump(mode="json")
    return canonical_text(value)


def profile_digest(text: str) -> str:
    """SHA-256 of ``profile_text``, hexadecimal."""
    return sha256(text.encode()).hexdigest()
