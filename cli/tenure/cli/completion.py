"""``tenure --install-completion``."""

from typing import Annotated, Literal

from cyclopts import Parameter

from tenure.cli.exits import SetupError

Shell = Literal["bash", "zsh", "fish"]


def install(
    *,
    shell: Annotated[
        Shell | None, Parameter(help="Which shell. [default: the one that runs this]")
    ] = None,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the script; install nothing.")
    ] = False,
) -> None:
    """Let the shell complete commands and options; --print for another place than its own."""
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from tenure.cli.main import build_app

    app = build_app()
    try:
        chosen = shell or detect_shell()
    except ShellDetectionError as error:
        raise SetupError(
            f"the shell cannot be told: {error}.", next_step="Name it with --shell."
        ) from error
    if print_:
        print(app.generate_completion(shell=chosen))
        return
    try:
        path = app.install_completion(shell=chosen)
    except OSError as error:
        raise SetupError(
            f"the script cannot be written: {error}.", next_step="Use --print."
        ) from error
    print(f"written to {path}; it works in a new {chosen}")
