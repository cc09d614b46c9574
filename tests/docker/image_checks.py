"""What can be wrong with the compose file and the Dockerfile, found without a Docker engine.

Every check returns a list of sentences, empty when all is well.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
PORT_OPTIONS = ("--port", "-p", "--webui-port")

Compose = dict[str, Any]
Problems = list[str]


def read_compose() -> Compose:
    loaded: Compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


@dataclass(frozen=True)
class Stage:
    """One build stage of a Dockerfile: its name, what it starts from, and its instructions."""

    name: str
    start: str
    steps: list[tuple[str, str]]

    def last(self, word: str) -> str | None:
        found = [rest for step, rest in self.steps if step == word]
        return found[-1] if found else None


def read_stages(text: str | None = None) -> dict[str, Stage]:
    text = (DOCKER / "Dockerfile").read_text() if text is None else text
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    stages: dict[str, Stage] = {}
    steps: list[tuple[str, str]] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            start, _, name = rest.partition(" AS ")
            steps = []
            stages[name] = Stage(name, start, steps)
        else:
            steps.append((word, rest.strip()))
    return stages


# -- the file itself -------------------------------------------------------------------------------


def schema_problems(compose: Compose) -> Problems:
    validator = jsonschema.validators.validator_for(schema := get_builtin_schema("vendor.compose-spec"))(
        schema
    )
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(compose)]


def service_problems(compose: Compose, stages: Mapping[str, Stage]) -> Problems:
    """Dependencies exist and have the health they are asked for; volumes are declared."""
    services = compose["services"]
    problems = []
    for name, service in services.items():
        for other, needs in service.get("depends_on", {}).items():
            if other not in services:
                problems.append(f"{name} depends on {other}, which does not exist")
            elif needs["condition"] == "service_healthy" and not has_health(services[other], stages):
                problems.append(f"{name} waits for the health of {other}, which has no healthcheck")
            elif (
                needs["condition"] == "service_completed_successfully"
                and services[other].get("restart") != "no"
            ):
                problems.append(f"{name} waits for the end of {other}, which is restarted")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith((".", "/")):
                if not (DOCKER / source).exists():
                    problems.append(f"{name} mounts {source}, which does not exist")
            elif source not in compose["volumes"]:
                problems.append(f"{name} mounts volume {source}, which is not declared")
    return problems


def has_health(service: Mapping[str, Any], stages: Mapping[str, Stage]) -> bool:
    target = service.get("build", {}).get("target")
    return "healthcheck" in service or (target in stages and stages[target].last("HEALTHCHECK") is not None)


def variable_problems(compose: Compose, example: str) -> Problems:
    """Variables of the file and names in the example of its secrets are the same."""
    used = set(re.findall(r"\$\{(\w+)", json.dumps(compose)))
    offered = set(re.findall(r"^(\w+)=", example, flags=re.MULTILINE))
    return [f"{name} is used or offered, not both" for name in sorted(used ^ offered)]


# -- images ----------------------------------------------------------------------------------------


def target_problems(compose: Compose, stages: Mapping[str, Stage]) -> Problems:
    problems = []
    for name, service in compose["services"].items():
        build = service.get("build")
        if build is None:
            continue
        if not (DOCKER / build["context"] / build["dockerfile"]).is_file():
            problems.append(f"{name} is built by {build['dockerfile']}, which does not exist")
        stage = stages.get(build["target"])
        if stage is None:
            problems.append(f"{name} is built as {build['target']}, which is not a stage")
        elif (user := stage.last("USER")) in (None, "root", "0"):
            problems.append(f"{name} runs as {user or 'root'}")
    return problems


def copy_problems(stages: Mapping[str, Stage], ignored: str) -> Problems:
    """What is copied exists, in the project or in another stage, and is not kept out by the ignore file."""
    kept = [line.removeprefix("!") for line in ignored.splitlines() if line.startswith("!")]
    problems = []
    for stage in stages.values():
        for word, rest in stage.steps:
            if word != "COPY":
                continue
            *sources, _ = (part for part in rest.split() if not part.startswith("--"))
            flags = dict(re.findall(r"--(\w+)=(\S+)", rest))
            if "from" in flags:
                if flags["from"] not in stages:
                    problems.append(f"stage {stage.name} copies from {flags['from']}, which is not a stage")
                continue
            for source in sources:
                if not (ROOT / source).exists():
                    problems.append(f"stage {stage.name} copies {source}, which does not exist")
                if not any(source == entry or source.startswith(f"{entry}/") for entry in kept):
                    problems.append(f"stage {stage.name} copies {source}, which the ignore file keeps out")
    return problems


def copied_files(stages: Mapping[str, Stage]) -> set[str]:
    """Where single files of the project land in images."""
    copies = [rest.split() for stage in stages.values() for word, rest in stage.steps if word == "COPY"]
    return {parts[-1] for parts in copies if not parts[0].startswith("--") and not parts[-1].endswith("/")}


# -- commands --------------------------------------------------------------------------------------


def commands(compose: Compose, stages: Mapping[str, Stage]) -> Iterator[list[str]]:
    """Every command line: of services, of their healthchecks, and of images."""
    for service in compose["services"].values():
        yield [str(word) for word in service.get("command", [])]
        test = service.get("healthcheck", {}).get("test", ["CMD"])
        yield [str(word) for word in test[1:]]
    for stage in stages.values():
        for word in ("CMD", "HEALTHCHECK"):
            if (rest := stage.last(word)) is not None:
                yield json.loads(rest[rest.index("[") :])


def python_problems(lines: Sequence[Sequence[str]], files: set[str]) -> Problems:
    """Programs given in words compile, and programs given by path are in the image."""
    problems = []
    for line in lines:
        if line[:2] == ["python", "-c"]:
            try:
                compile(line[2], "-c", "exec")
            except SyntaxError as exc:
                problems.append(f"{line[2]}: {exc}")
        elif line[:1] == ["python"] and line[1] != "-m" and line[1] not in files:
            problems.append(f"{line[1]} is in no image")
    return problems


def spark_problems(lines: Sequence[Sequence[str]], pyspark: Path) -> Problems:
    """The Java classes that are started exist in PySpark."""
    wanted = {line[1] for line in lines if line[:1] == ["spark-class"]}
    found: set[str] = set()
    for jar in (pyspark / "jars").glob("spark-core_*.jar"):
        with zipfile.ZipFile(jar) as archive:
            found.update(name.removesuffix(".class").replace("/", ".") for name in archive.namelist())
    problems = [f"PySpark has no class {name}" for name in sorted(wanted - found)]
    return (
        problems if (pyspark / "bin" / "spark-class").is_file() else [*problems, "PySpark has no spark-class"]
    )


# -- wires between services ------------------------------------------------------------------------


def listening(service: Mapping[str, Any]) -> set[str]:
    """The ports that a service's command and the Spark settings of its environment open."""
    words = [str(word) for word in service.get("command", [])]
    ports = {value for name, value in pairwise(words) if name in PORT_OPTIONS}
    conf = json.loads(environment(service).get("GLIDEMQ_SPARK_CONF", "{}"))
    return ports | {value for name, value in conf.items() if name.lower().endswith("port")}


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def port_problems(compose: Compose) -> Problems:
    """A port that is used is exposed by its service, which listens on what it exposes."""
    services = compose["services"]
    problems = []
    for name, service in services.items():
        exposed = {str(port) for port in service.get("expose", [])}
        problems += [
            f"{name} exposes {port}, on which nothing listens"
            for port in sorted(exposed - listening(service))
        ]
        own = [("localhost", str(mapping).rsplit(":", 1)[-1]) for mapping in service.get("ports", [])]
        for host, port in [*own, *references(service, services)]:
            target = name if host in ("localhost", "127.0.0.1") else host
            if port not in {str(one) for one in services[target].get("expose", [])}:
                problems.append(f"{name} uses {host}:{port}, which {target} does not expose")
    return problems


def references(service: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Host and port of every address in the environment, the command and the healthcheck of a service."""
    hosts = "|".join(sorted(map(re.escape, [*services, "localhost"]), key=len, reverse=True))
    texts = [*environment(service).values(), *map(str, service.get("command", []))]
    for text in [*texts, *map(str, service.get("healthcheck", {}).get("test", []))]:
        yield from re.findall(rf"(?<![\w.-])({hosts}):(\d+)", text)
        if text.startswith("{") and "host" in (wire := json.loads(text)):
            yield wire["host"], str(wire["port"])


def unknown_hosts(compose: Compose) -> Problems:
    """Hosts of URLs are services."""
    problems = []
    for name, service in compose["services"].items():
        for text in [*environment(service).values(), *map(str, service.get("command", []))]:
            hosts = set(re.findall(r"://(?:[^@/\s]*@)?([\w.-]+):\d+", text)) - set(compose["services"])
            problems += [f"{name} uses host {host}, which is not a service" for host in sorted(hosts)]
    return problems


def data_problems(compose: Compose) -> Problems:
    """The driver and the executors see the data that DAGs name, at the same path."""
    services = compose["services"]
    wanted = {environment(service).get("GLIDEMQ_FLIGHTS_DATA") for service in services.values()} - {None}
    runners = [
        name
        for name, service in services.items()
        if {"glidemq", "org.apache.spark.deploy.worker.Worker"} & set(map(str, service.get("command", [])))
    ]
    problems = [] if wanted and runners else ["no data or no service to work on it"]
    for name in runners:
        mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services[name].get("volumes", [])}
        problems += [
            f"{name} does not mount the volume flights at {path}"
            for path in wanted
            if mounted.get(str(path)) != "flights"
        ]
    return problems


def variable_reader_problems(compose: Compose) -> Problems:
    """Every GLIDEMQ_ variable is read somewhere."""
    folders = ("glidemq_orchestrate", "providers", "dags")
    code = "\n".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py"))
    names = {
        n
        for service in compose["services"].values()
        for n in environment(service)
        if n.startswith("GLIDEMQ_")
    }
    return [f"nothing reads {name}" for name in sorted(names) if f'"{name}"' not in code]
