"""The images and the compose file fit the code, and the checks would notice if they did not."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.command_line import glidemq_problems

if TYPE_CHECKING:
    from tests.docker import image_checks as checks
else:
    import image_checks as checks

AIRFLOW_PROGRAM = """
import json, sys
from airflow.cli import cli_parser
from airflow.configuration import retrieve_configuration_description
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook

wanted = json.load(sys.stdin)
described = retrieve_configuration_description()
options = [name for name in wanted["options"] if name[1] not in described.get(name[0], {}).get("options", {})]
refused = []
for words in wanted["commands"]:
    try:
        cli_parser.get_parser().parse_args(words)
    except SystemExit as exc:
        refused += [words] if exc.code else []
url = GlideMQHook("glidemq_default").get_settings().url
print(json.dumps({"options": options, "refused": refused, "url": url}))
"""


@pytest.fixture
def compose() -> checks.Compose:
    """A copy that the test may spoil."""
    return copy.deepcopy(checks.read_compose())


@pytest.fixture(scope="module")
def stages() -> dict[str, checks.Stage]:
    return checks.read_stages()


@pytest.fixture
def lines(compose: checks.Compose, stages: dict[str, checks.Stage]) -> list[list[str]]:
    return list(checks.commands(compose, stages))


def ignored() -> str:
    return (checks.DOCKER / "Dockerfile.dockerignore").read_text()


def example() -> str:
    return (checks.DOCKER / ".env.example").read_text()


def test_the_file_follows_the_compose_specification(compose: checks.Compose) -> None:
    assert checks.schema_problems(compose) == []
    compose["services"]["worker"]["comand"] = ["glidemq"]
    assert any("comand" in problem for problem in checks.schema_problems(compose))


def test_dependencies_volumes_and_mounts_exist(
    compose: checks.Compose, stages: dict[str, checks.Stage]
) -> None:
    assert checks.service_problems(compose, stages) == []
    services = compose["services"]
    del services["valkey"]["healthcheck"]
    services["airflow-init"]["restart"] = "always"
    services["worker"]["depends_on"]["nobody"] = {"condition": "service_started"}
    services["worker"]["volumes"] = ["../nowhere:/data", "undeclared:/more"]
    problems = "; ".join(checks.service_problems(compose, stages))
    for part in ("health of valkey", "end of airflow-init", "on nobody", "../nowhere", "volume undeclared"):
        assert part in problems


def test_every_service_that_stays_has_a_healthcheck(
    compose: checks.Compose, stages: dict[str, checks.Stage]
) -> None:
    staying = {n: s for n, s in compose["services"].items() if s.get("restart") != "no"}
    assert {name for name, service in staying.items() if not checks.has_health(service, stages)} == set()
    assert not checks.has_health({"build": {"target": "base"}}, stages)


def test_the_secrets_are_those_of_the_example(compose: checks.Compose) -> None:
    assert checks.variable_problems(compose, example()) == []
    assert checks.variable_problems(compose, example() + "\nMORE=1\n") == [
        "MORE is used or offered, not both"
    ]


def test_every_target_is_a_stage_and_no_service_runs_as_root(
    compose: checks.Compose, stages: dict[str, checks.Stage]
) -> None:
    assert checks.target_problems(compose, stages) == []
    compose["services"]["worker"]["build"] = {"context": "..", "dockerfile": "Dockerfile", "target": "base"}
    compose["services"]["airflow-init"]["build"]["target"] = "nothing"
    problems = "; ".join(checks.target_problems(compose, stages))
    for part in (
        "worker is built by Dockerfile, which",
        "worker runs as root",
        "nothing, which is not a stage",
    ):
        assert part in problems
    assert {"worker", "worker-spark", "airflow"} <= set(stages)


def test_what_is_copied_exists(stages: dict[str, checks.Stage]) -> None:
    assert checks.copy_problems(stages, ignored()) == []
    spoilt = checks.read_stages("FROM x AS a\nCOPY nowhere lua /src/\nCOPY --from=b /x /x\n")
    problems = "; ".join(checks.copy_problems(spoilt, ignored()))
    for part in (
        "nowhere, which does not exist",
        "lua, which the ignore file keeps out",
        "from b, which is not",
    ):
        assert part in problems


def test_the_worker_without_spark_has_no_java(stages: dict[str, checks.Stage]) -> None:
    def steps_of(name: str) -> str:
        built = [rest for stage in (name, f"build-{name}") for _, rest in stages[stage].steps]
        return " ".join(built)

    assert not any(word in steps_of("worker") for word in ("jre", "spark", "demo"))
    assert all(word in steps_of("worker-spark") for word in ("openjdk-17-jre-headless", "demo"))


def test_the_command_line_has_every_command_and_option(lines: list[list[str]]) -> None:
    assert any(line[:2] == ["glidemq", "worker"] for line in lines)
    assert glidemq_problems(lines) == []
    spoilt = [
        ["glidemq", "worker", "--app", "x", "--queue", "q", "--threads", "4"],
        ["glidemq", "worker", "--app", "x"],
        ["glidemq", "work"],
        ["glidemq", "flow", "repeat"],
    ]
    assert len(glidemq_problems(spoilt)) == len(spoilt)


def test_the_readme_names_real_commands() -> None:
    text = (checks.DOCKER / "README.md").read_text()
    found = [line.split() for line in re.findall(r"\bglidemq (?:worker|server|flow)\b[^`\n]*", text)]
    assert found
    assert glidemq_problems(found) == []


def test_python_programs_compile_and_are_in_the_image(
    lines: list[list[str]], stages: dict[str, checks.Stage]
) -> None:
    files = checks.copied_files(stages)
    assert "/opt/glidemq/healthcheck.py" in files
    assert checks.python_problems(lines, files) == []
    assert len(checks.python_problems([["python", "-c", "import ("], ["python", "/nowhere.py"]], files)) == 2


def test_pyspark_has_the_classes_of_the_cluster(lines: list[list[str]]) -> None:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    pyspark = Path(spec.origin).parent
    assert sum(line[:1] == ["spark-class"] for line in lines) == 3
    assert checks.spark_problems(lines, pyspark) == []
    spoilt = [["spark-class", "org.apache.spark.deploy.Boss"]]
    assert checks.spark_problems(spoilt, pyspark) == ["PySpark has no class org.apache.spark.deploy.Boss"]


def test_ports_that_are_used_are_open(compose: checks.Compose) -> None:
    assert checks.port_problems(compose) == []
    used = {
        pair
        for service in compose["services"].values()
        for pair in checks.references(service, compose["services"])
    }
    assert {
        ("valkey", "6379"),
        ("postgres", "5432"),
        ("spark-master", "7077"),
        ("airflow-api-server", "8080"),
    } <= used


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda s: s["worker"]["environment"].update(GLIDEMQ_URL="valkey://valkey:6380"),
            "worker uses valkey:6380",
        ),
        (lambda s: s["spark-master"]["command"].__setitem__(5, "7078"), "spark-master exposes 7077"),
        (lambda s: s["airflow-api-server"].update(ports=["127.0.0.1:8080:8081"]), "uses localhost:8081"),
        (
            lambda s: s["airflow-init"]["environment"].update(
                AIRFLOW_CONN_GLIDEMQ_DEFAULT='{"host": "valkey", "port": 1}'
            ),
            "airflow-init uses valkey:1,",
        ),
    ],
)
def test_a_wrong_port_is_noticed(
    compose: checks.Compose, spoil: Callable[[Any], None], expected: str
) -> None:
    spoil(compose["services"])
    assert any(expected in problem for problem in checks.port_problems(compose))


def test_hosts_are_services(compose: checks.Compose) -> None:
    assert checks.unknown_hosts(compose) == []
    compose["services"]["worker"]["environment"]["GLIDEMQ_URL"] = "valkey://user:secret@elsewhere:6379"
    assert checks.unknown_hosts(compose) == ["worker uses host elsewhere, which is not a service"]


def test_driver_and_executors_share_the_data(compose: checks.Compose) -> None:
    assert checks.data_problems(compose) == []
    compose["services"]["spark-worker-2"]["volumes"] = ["flights:/elsewhere"]
    assert checks.data_problems(compose) == [
        "spark-worker-2 does not mount the volume flights at /data/flights"
    ]


def test_every_variable_of_ours_is_read(compose: checks.Compose) -> None:
    assert checks.variable_reader_problems(compose) == []
    compose["services"]["worker"]["environment"]["GLIDEMQ_NOBODY_READS_THIS"] = "1"
    assert checks.variable_reader_problems(compose) == ["nothing reads GLIDEMQ_NOBODY_READS_THIS"]


def ask_airflow(compose: checks.Compose, lines: list[list[str]], home: Path) -> dict[str, Any]:
    """What Airflow does not know of options and commands, and the URL that the provider makes."""
    environment = checks.environment(compose["services"]["airflow-scheduler"])
    options = [
        n.removeprefix("AIRFLOW__").lower().split("__") for n in environment if n.startswith("AIRFLOW__")
    ]
    words = [line[3:] for line in lines if line[:3] == ["python", "-m", "airflow"]]
    assert options
    assert words
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    connection = {n: value for n, value in environment.items() if n.startswith("AIRFLOW_CONN_")}
    search = os.pathsep.join(
        [str(checks.ROOT), str(checks.ROOT / "providers" / "airflow"), kept.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", AIRFLOW_PROGRAM],
        input=json.dumps({"options": options, "commands": words}),
        env={**kept, **connection, "AIRFLOW_HOME": str(home), "PYTHONPATH": search},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.long
def test_airflow_knows_every_option_and_command_and_reads_the_connection(
    compose: checks.Compose, lines: list[list[str]], tmp_path: Path
) -> None:
    answer = ask_airflow(compose, lines, tmp_path)
    assert answer == {"options": [], "refused": [], "url": "valkey://valkey:6379/0"}


@pytest.mark.long
def test_what_airflow_does_not_know_is_noticed(
    compose: checks.Compose, lines: list[list[str]], tmp_path: Path
) -> None:
    environment = compose["services"]["airflow-scheduler"]["environment"]
    environment["AIRFLOW__CORE__NO_SUCH_OPTION"] = "1"
    environment["AIRFLOW_CONN_GLIDEMQ_DEFAULT"] = (
        '{"conn_type": "glidemq", "host": "elsewhere", "port": 6379}'
    )
    answer = ask_airflow(compose, [*lines, ["python", "-m", "airflow", "schedule"]], tmp_path)
    assert answer["options"] == [["core", "no_such_option"]]
    assert answer["refused"] == [["schedule"]]
    assert answer["url"] == "valkey://elsewhere:6379/0"
