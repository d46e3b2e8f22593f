"""compose.yaml: what it promises, and, where a Docker engine answers, whether it works."""

import asyncio
import json
import re
import secrets
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.repository import REPOSITORY

COMPOSE = REPOSITORY / "compose.yaml"
OURS = {"migrate", "coordinator", "relay", "downstream", "executor", "demo"}
ONCE = {"migrate", "downstream", "demo"}
SERVERS = {"postgres", "rabbitmq"}


def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml, with what they share merged in."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    return found


def test_the_services_are_those_that_the_page_names() -> None:
    assert set(services()) == OURS | SERVERS
    assert services()["coordinator"]["deploy"]["replicas"] == 2
    assert services()["relay"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_process_of_ours_can_write_nowhere_and_gain_nothing(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service, "the image says which"
    assert "privileged" not in service


@pytest.mark.parametrize("name", sorted(OURS | SERVERS))
def test_a_service_that_stays_has_a_health_check_and_comes_back(name: str) -> None:
    service = services()[name]
    assert ("healthcheck" in service) is (name not in ONCE)
    assert service["restart"] == ("no" if name in ONCE else "unless-stopped")


def test_nothing_is_reachable_from_other_machines() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert ports != []
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_nothing_starts_before_what_it_needs() -> None:
    for name, service in services().items():
        for needed, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert how == {"condition": expected}, f"{name} needs {needed}"


def test_every_password_is_made_by_the_script_and_none_is_in_the_file(tmp_path: Path) -> None:
    named = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text("utf-8")))
    file = tmp_path / ".env"
    make(file)
    made = dict(line.split("=", 1) for line in file.read_text("utf-8").splitlines())
    assert set(made) == named
    assert all(re.fullmatch("[0-9a-f]{48}", secret) for secret in made.values())
    assert len(set(made.values())) == len(made)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for service in services().values():
        for key, value in service.get("environment", {}).items():
            if re.search("PASS|TOKEN", key):
                assert "${" in value
            assert not re.search(r"://\w+:(?!\$\{)[^@/]*@", str(value)), key


def test_passwords_that_are_there_are_kept(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    make(file)
    before = file.read_text("utf-8")
    make(file)
    assert file.read_text("utf-8") == before
    assert list(tmp_path.iterdir()) == [file]


def make(file: Path) -> None:
    subprocess.run([REPOSITORY / "deploy" / "make-env", file], check=True, capture_output=True)


def test_the_image_runs_as_a_numbered_user_that_is_not_root() -> None:
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    last = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["10001:10001"]
    installs = re.findall(r"(?:pip install|pip sync|uv build)[^&]*", text)
    assert [words for words in installs if "--no-deps" not in words] == [
        words for words in installs if "--require-hashes" in words
    ]


async def compose(project: str, *words: str) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        "docker", "compose", "--project-name", project, *words,
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def obstacle() -> str | None:
    """Why compose.yaml cannot be run here."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for words, missing in (
        (["info"], "no Docker engine answers"),
        (["compose", "version"], "the docker command has no compose"),
    ):
        if subprocess.run(["docker", *words], capture_output=True, check=False).returncode != 0:
            return missing
    return None


@pytest.mark.timeout(900)
async def test_the_demo_runs_against_it(tmp_path: Path) -> None:
    """Builds the image, starts everything, hashes the standard library, ends everything."""
    if (missing := obstacle()) is not None:
        pytest.skip(f"COMPOSE.YAML WAS NOT RUN: {missing}")
    env = tmp_path / ".env"
    make(env)
    project = f"tenure-test-{secrets.token_hex(3)}"
    # Nobody's ports: the tests need none from outside.
    override = tmp_path / "override.yaml"
    override.write_text("services: {coordinator: {ports: !reset []}}\n", encoding="utf-8")
    files = ("--env-file", str(env), "-f", str(COMPOSE), "-f", str(override))
    try:
        code, _, err = await compose(project, *files, "up", "--build", "--detach", "--wait")
        assert code == 0, err
        code, out, err = await compose(project, *files, "run", "--rm", "--no-TTY", "demo")
        assert code == 0, err
        result = json.loads(out.splitlines()[-1])
        assert result["ok"] is True
        assert result["delivered"] == result["files"] > 500
        code, out, err = await compose(
            project, *files, "exec", "--no-TTY", "executor", "python", "-c", WRITES
        )
        assert (code, out.split()) == (0, ["10001", "refused"]), err
    finally:
        await compose(project, *files, "--profile", "*", "down", "--volumes", "--timeout", "20")


WRITES = """
import os
try:
    open("/opt/tenure/written", "w")
except OSError:
    print(os.getuid(), "refused")
"""
