"""What is wrong with the broker, as errors of ours."""

from aiormq.exceptions import (
    AuthenticationError,
    ChannelClosed,
    ConnectionNotAllowed,
    ProbableAuthenticationError,
)

from tenure.coordinator.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    BrokerUntrusted,
)
from tenure.settings.tls import tls_fault


def refusal(error: BaseException) -> BrokerError:
    """The error of ours that says what this one of the library means."""
    reason = str(error) or type(error).__name__
    if isinstance(error, AuthenticationError | ProbableAuthenticationError):
        return BrokerRefused(
            f"The broker refuses the login: {reason}.",
            next_step="Check user and password of TENURE_BROKER_URL.",
        )
    if isinstance(error, ConnectionNotAllowed):
        return BrokerRefused(
            f"The broker refuses the connection: {reason}.",
            next_step="Check the virtual host of TENURE_BROKER_URL and the user's rights on it.",
        )
    if isinstance(error, ChannelClosed):
        return BrokerRefused(
            f"The broker refuses an operation: {reason}.",
            next_step="Give the user the rights to configure, write and read its names; remove what"
            " exists under these names with other properties.",
        )
    if fault := tls_fault(error, "broker"):
        return BrokerUntrusted(fault.message, next_step=fault.next_step)
    return BrokerUnreachable(
        f"No connection to the broker: {reason}.",
        next_step="Check the address, and that the broker runs.",
    )
