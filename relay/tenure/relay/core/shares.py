"""How shards are shared among relays: each works out the same from the same numbers."""


def fair_share(shards: int, relays: int, earlier: int) -> int:
    """How many of ``shards`` are due to one of ``relays``, of which ``earlier`` joined before it.

    The shares add up to ``shards`` and differ by at most one. Who joined first has the larger ones,
    so that a newcomer moves no more shards than it gets. Raises ValueError for impossible numbers.
    """
    if not 0 <= earlier < relays:
        raise ValueError(f"{earlier} of {relays} relays cannot have joined before this one")
    each, rest = divmod(shards, relays)
    return each + (earlier < rest)
