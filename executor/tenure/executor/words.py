"""Words of user code, as the coordinator can store them."""


def storable(value: object, limit: int) -> str:
    """Text without \\u0000 or a lone surrogate, of at most ``limit`` characters. User code gives
    numbers and exceptions for it too."""
    return (
        str(value)
        .encode("utf-8", "replace")
        .decode()
        .replace("\x00", "\N{REPLACEMENT CHARACTER}")[:limit]
    )
