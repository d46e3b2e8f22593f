"""Who sent a request, and whether it may be asked by them."""

from collections.abc import Collection

from starlette.requests import Request

from tenure.contract.codes import Code
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import CurrentIdentities, Identity, Role


def authenticate(request: Request, identities: CurrentIdentities) -> Identity:
    """The identity behind the bearer token.

    Raises RequestRefused ``unauthenticated``: no token, or one that is not known. The answer says
    which of the two, never more.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise RequestRefused(Code.UNAUTHENTICATED, "The request carries no bearer token.")
    identity = identities.find(token.strip())
    if identity is None:
        raise RequestRefused(Code.UNAUTHENTICATED, "The bearer token is not known here.")
    return identity


def require(identity: Identity, roles: Collection[Role]) -> None:
    """Raises RequestRefused ``forbidden_role`` when the token's role is none of ``roles``."""
    if identity.role not in roles:
        allowed = ", ".join(sorted(roles))
        raise RequestRefused(
            Code.FORBIDDEN_ROLE,
            f"The token of {identity.name!r} has the role {identity.role}; this needs: {allowed}.",
        )
