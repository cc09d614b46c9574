"""Runs the DAG ``small`` of a folder by ``dag.test``, with a worker in a thread. As a program: FOLDER URL.

Prints JSON: the state of the run, the state of each task, and the result of the last one.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from glidemq_orchestrate import Worker
from glidemq_orchestrate.python import handlers
from tests.providers.airflow.trigger_rules import store_dags


def parsed(folder: Path) -> Any:
    """The DAG, stored in the database too."""
    from airflow.utils.db import initdb  # noqa: PLC0415  writes its configuration
    from airflow.utils.session import create_session  # noqa: PLC0415

    try:
        from airflow.dag_processing.dagbag import BundleDagBag  # noqa: PLC0415
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import BundleDagBag  # type: ignore[no-redef]  # noqa: PLC0415
    initdb()
    with create_session() as session:
        store_dags(session)
    return BundleDagBag(dag_folder=folder, bundle_path=folder).dags["small"]


def main(folder: Path, url: str) -> None:
    """Run it."""
    worker = Worker(url, queues=["etl"], allow_import=["small_dag"])
    worker.handlers.include(handlers)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert worker.ready.wait(20)
    dag = parsed(folder)
    run = dag.test()
    tasks = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    last = run.get_task_instance("after").xcom_pull(task_ids="after")
    worker.stop()
    thread.join(20)
    sys.stdout.write(json.dumps({"run": str(run.state), "tasks": tasks, "last": last}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
