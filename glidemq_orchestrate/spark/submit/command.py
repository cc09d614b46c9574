"""What ``spark-submit`` is told of a program. Pure.

The tag of a driver is also where a cluster keeps such things, so that whoever looks there finds what belongs
to a job: in the tags of an application of YARN, and as a label of its pods on Kubernetes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from glidemq_orchestrate.spark.identity import identity_of
from glidemq_orchestrate.spark.settings import REDACTED
from glidemq_orchestrate.spark.submit.application import Application
from glidemq_orchestrate.worker.handlers.context import Context

YARN_TAGS: Final = "spark.yarn.tags"
KUBERNETES_LABEL: Final = "spark.kubernetes.executor.label.glidemq-tag"


def settings_of(
    ctx: Context, application: Application, settings: Mapping[str, str], tag: str
) -> dict[str, str]:
    """All settings of a driver; ``settings`` are those of the worker and of the payload."""
    name = f"{ctx.queue}: {ctx.node or application.path.rpartition('/')[2]} ({ctx.job_id})"
    conf = {"spark.app.name": name, "spark.ui.port": "0", "spark.ui.showConsoleProgress": "false"}
    conf["spark.redaction.regex"] = REDACTED
    conf |= {**settings, **identity_of(application.title, ctx)}
    conf["spark.submit.deployMode"] = "client"  # a cluster's own setting may be another
    if conf["spark.master"].startswith("yarn"):
        conf[YARN_TAGS] = ",".join(filter(None, (conf.get(YARN_TAGS), tag)))
    if conf["spark.master"].startswith("k8s://"):
        conf[KUBERNETES_LABEL] = tag
    return conf


def arguments_of(application: Application) -> list[str]:
    """Those of ``spark-submit`` after the settings."""
    arguments: list[str] = []
    if application.main_class:
        arguments += ["--class", application.main_class]
    if application.py_files:
        arguments += ["--py-files", ",".join(application.py_files)]
    return [*arguments, application.path, *application.args]


def digest_of(application: Application, conf: Mapping[str, str]) -> str:
    """What tells whether a driver runs what is asked for now."""
    fields = (application.path, application.main_class, application.args, application.py_files, dict(conf))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
