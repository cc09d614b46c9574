"""Asks Airflow itself, its scheduler's code with a database, what its trigger rules decide. Run as a program.

Prints JSON: what becomes of a task, for each rule and combination of up to three ends of upstream tasks.
"""

from __future__ import annotations

import contextlib
import json
import sys
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

ENDS = {"completed": "success", "failed": "failed", "skipped": "skipped"}
WORDS = {"upstream_failed": "failed", "skipped": "skipped"}
WITHOUT = {"all_done_setup_success"}  # about set-up tasks, which flows do not have
COMBINATIONS = [ends for size in (1, 2, 3) for ends in combinations_with_replacement(ENDS, size)]
DAG_FILE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("rules"):
    tasks = {{}}
    for end in {ends}:
        for number in range(3):
            tasks[end, number] = EmptyOperator(task_id=f"{{end}}-{{number}}")
    for rule in {rules}:
        for ends in {combinations}:
            task = EmptyOperator(task_id=f"{{rule}}--" + "-".join(ends), trigger_rule=rule)
            for number, end in enumerate(ends):
                tasks[end, number] >> task
"""


def store_dags(session: Any) -> None:
    """Parse the DAG files into the database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager  # noqa: PLC0415

    try:
        from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db  # noqa: PLC0415
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import (  # type: ignore[no-redef]  # noqa: PLC0415
            BundleDagBag,
            sync_bag_to_db,
        )

        has_name = False
    else:
        has_name = True
    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    manager.sync_bundles_to_db(session=session)
    session.commit()
    for bundle in manager.get_all_dag_bundles():
        bundle.initialize()
        named = {"bundle_name": bundle.name} if has_name else {}
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, **named)
        assert not bag.import_errors, bag.import_errors
        sync_bag_to_db(bag, bundle.name, bundle.version, session=session)
    session.commit()


def decide(folder: Path) -> dict[str, dict[str, str]]:
    """What Airflow decides, by rule and by ends joined with ``-``."""
    from airflow import settings  # noqa: PLC0415  writes its configuration
    from airflow.models.dagrun import get_or_create_dagrun  # noqa: PLC0415
    from airflow.models.serialized_dag import SerializedDagModel  # noqa: PLC0415
    from airflow.sdk import timezone  # noqa: PLC0415
    from airflow.task.trigger_rule import TriggerRule  # noqa: PLC0415
    from airflow.utils.db import initdb  # noqa: PLC0415
    from airflow.utils.types import DagRunTriggeredByType  # noqa: PLC0415

    rules = [rule.value for rule in TriggerRule if rule.value not in WITHOUT]
    text = DAG_FILE.format(ends=list(ENDS), rules=rules, combinations=COMBINATIONS)
    (folder / "rules.py").write_text(text, encoding="utf-8")
    initdb()
    session: Any = settings.Session()  # type: ignore[misc]
    store_dags(session)
    dag = SerializedDagModel.get_dag("rules", session=session)
    assert dag is not None
    now = timezone.utcnow()
    run = get_or_create_dagrun(
        dag=dag,
        run_id="r",
        logical_date=now,
        data_interval=(now, now),
        run_after=now,
        conf=None,
        triggered_by=DagRunTriggeredByType.TEST,
        triggering_user_name="test",
        start_date=now,
        session=session,
    )
    for task in run.get_task_instances(session=session):
        if "--" not in task.task_id:
            task.state = ENDS[task.task_id.split("-")[0]]
    session.commit()
    may_run: set[str] = set()
    for _ in range(3):
        found, _ = run.update_state(session=session)
        may_run |= {task.task_id for task in found}
    decided: dict[str, dict[str, str]] = {rule: {} for rule in rules}
    for task in run.get_task_instances(session=session):
        if "--" in task.task_id:
            rule, _, ends = task.task_id.partition("--")
            decided[rule][ends] = WORDS.get(str(task.state), "run" if task.task_id in may_run else "waits")
    return decided


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        decided = decide(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(decided) + "\n")
