"""What a user does to a real Dagster, and what happened.

What is done goes by GraphQL, as from the UI; what happened is read from the instance, as Dagster's objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluation

from tests.system.dagster_processes import COMPONENTS, LOCATION, DagsterProcesses, DagsterStackError, polls

REPOSITORY: Final = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__"}
ALL_ASSETS: Final = "__ASSET_JOB"
ENDED: Final = ("SUCCESS", "FAILURE", "CANCELED")


class DagsterStack(DagsterProcesses):
    """A code server, a webserver and a daemon, with the verbs of the UI; keys of assets are ``a/b``."""

    # -- runs ------------------------------------------------------------------------------------------------

    def launch(
        self,
        job: str = ALL_ASSETS,
        *,
        assets: Sequence[str] = (),
        checks: Sequence[tuple[str, str]] = (),
        partition: str | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a run of a job, or of some of its assets, and return its id.

        Args:
            job: The job; left out: the one that has all assets.
            assets: Their keys, parts separated by ``/``; none: all of the job.
            checks: Keys of assets and names of their checks; with none, all checks of the chosen assets run.
            partition: Key of the partition.
            config: Config of the run.
            tags: Tags of the run.
        """
        selector: dict[str, Any] = {**REPOSITORY, "jobName": job}
        if assets or checks:
            selector["assetSelection"] = [_key(asset) for asset in assets]
        if checks:
            selector["assetCheckSelection"] = [{"assetKey": _key(of), "name": name} for of, name in checks]
        tagged = {**(tags or {}), **({"dagster/partition": partition} if partition else {})}
        params = {
            "selector": selector,
            "runConfigData": dict(config or {}),
            "executionMetadata": {"tags": _tags(tagged)},
        }
        return self._launched("launchRun", "executionParams: $params", "ExecutionParams!", params)

    def reexecute(self, run_id: str, strategy: str, tags: Mapping[str, str] | None = None) -> str:
        """Re-execute a run, and return the id of the new one.

        Args:
            run_id: The run.
            strategy: ``ALL_STEPS``, ``FROM_FAILURE`` or ``FROM_ASSET_FAILURE``.
            tags: Additional tags.
        """
        params = {"parentRunId": run_id, "strategy": strategy, "extraTags": _tags(tags or {})}
        return self._launched(
            "launchRunReexecution", "reexecutionParams: $params", "ReexecutionParams!", params
        )

    def terminate(self, run_id: str) -> None:
        """Ask for the end of a run, as its button in the UI does."""
        self.ask("mutation($id: String!) { it: terminateRun(runId: $id) { __typename } }", {"id": run_id})

    def run_status(self, run_id: str) -> str:
        """``QUEUED``, ``STARTING``, ``STARTED``, ``CANCELING``, or one of ``ENDED``."""
        query = "query($id: ID!) { it: runOrError(runId: $id) { __typename ... on Run { status } } }"
        return str(self.ask(query, {"id": run_id})["status"])

    def wait_for_run(self, run_id: str, timeout: float = 180.0) -> str:
        """Wait until a run has ended, and return its status.

        Raises:
            DagsterStackError: It has not; with its story.
        """
        for _ in polls(timeout):
            if (status := self.run_status(run_id)) in ENDED:
                return status
        raise DagsterStackError(f"run {run_id} has not ended after {timeout:.0f} s:\n{self.story(run_id)}")

    def wait_for_step(self, run_id: str, kind: dg.DagsterEventType, timeout: float = 120.0) -> None:
        """Wait for an event of a run, such as ``STEP_START``."""
        for _ in polls(timeout):
            if self.events(run_id, kind):
                return
        raise DagsterStackError(f"no {kind} of run {run_id} in {timeout:.0f} s:\n{self.story(run_id)}")

    def runs(self, tags: Mapping[str, str]) -> list[str]:
        """The ids of the runs with these tags, oldest first."""
        query = """query($tags: [ExecutionTag!]) {
            it: runsOrError(filter: {tags: $tags}) { __typename ... on Runs { results { runId } } } }"""
        found = self.ask(query, {"tags": _tags(tags)})["results"]
        return [str(run["runId"]) for run in reversed(found)]

    def wait_for_retry(self, run_id: str, timeout: float = 180.0) -> str:
        """Wait until the daemon has launched the retry of a run that failed, and return its id."""
        for _ in polls(timeout):
            if found := self.runs({"dagster/parent_run_id": run_id}):
                return found[-1]
        raise DagsterStackError(f"run {run_id} was not retried:\n{self.story(run_id)}")

    # -- partitions ------------------------------------------------------------------------------------------

    def backfill(
        self, assets: Sequence[str], partitions: Sequence[str], tags: Mapping[str, str] | None = None
    ) -> str:
        """Launch a backfill of assets over partitions, and return its id."""
        params = {
            "assetSelection": [_key(asset) for asset in assets],
            "partitionNames": list(partitions),
            "tags": _tags(tags or {}),
        }
        query = """mutation($params: LaunchBackfillParams!) {
            it: launchPartitionBackfill(backfillParams: $params) {
                __typename ... on LaunchBackfillSuccess { backfillId } ... on Error { message } } }"""
        return str(self.ask(query, {"params": params})["backfillId"])

    def backfill_status(self, backfill_id: str) -> str:
        """``REQUESTED`` while it runs; ``COMPLETED_SUCCESS``, ``COMPLETED_FAILED`` and others afterwards."""
        query = """query($id: String!) { it: partitionBackfillOrError(backfillId: $id) {
            __typename ... on PartitionBackfill { status } } }"""
        return str(self.ask(query, {"id": backfill_id})["status"])

    def wait_for_backfill(self, backfill_id: str, timeout: float = 300.0) -> str:
        """Wait until a backfill has ended, and return its status. The daemon looks every 30 seconds."""
        for _ in polls(timeout):
            status = self.backfill_status(backfill_id)
            if status not in ("REQUESTED", "CANCELING", "FAILING"):
                return status
        runs = {run: self.run_status(run) for run in self.runs({"dagster/backfill": backfill_id})}
        raise DagsterStackError(f"backfill {backfill_id} has not ended: {runs}\n{self.tail('daemon')}")

    # -- sensors and schedules -------------------------------------------------------------------------------

    def start_sensor(self, name: str) -> None:
        """Turn a sensor on, as its switch in the UI does."""
        query = """mutation($selector: SensorSelector!) {
            it: startSensor(sensorSelector: $selector) { __typename } }"""
        self.ask(query, {"selector": {**REPOSITORY, "sensorName": name}})

    def stop_sensor(self, name: str) -> None:
        """Turn it off."""
        found = self._sensor(name, "id")
        self.ask("mutation($id: String!) { it: stopSensor(id: $id) { __typename } }", {"id": found["id"]})

    def ticks(self, name: str) -> list[dict[str, Any]]:
        """The ticks of a sensor, newest first.

        Each has ``status`` (``SUCCESS``, ``SKIPPED``, ``FAILURE`` or ``STARTED``), ``runIds``, ``cursor``,
        ``skipReason`` and ``error``.
        """
        fields = "sensorState { ticks(limit: 50) { status runIds cursor skipReason error { message } } }"
        found: list[dict[str, Any]] = self._sensor(name, fields)["sensorState"]["ticks"]
        return found

    def wait_for_tick(
        self, name: str, suits: Callable[[dict[str, Any]], bool], timeout: float = 120.0
    ) -> dict[str, Any]:
        """Wait for a tick of a sensor that suits, and return it."""
        found: list[dict[str, Any]] = []
        for _ in polls(timeout):
            found = self.ticks(name)
            if suiting := [tick for tick in found if suits(tick)]:
                return suiting[0]
        raise DagsterStackError(
            f"no such tick of {name} in {timeout:.0f} s: {found[:5]}\n{self.tail('daemon')}"
        )

    def start_schedule(self, name: str) -> None:
        """Turn a schedule on."""
        query = """mutation($selector: ScheduleSelector!) {
            it: startSchedule(scheduleSelector: $selector) { __typename } }"""
        self.ask(query, {"selector": {**REPOSITORY, "scheduleName": name}})

    def _sensor(self, name: str, fields: str) -> dict[str, Any]:
        query = f"""query($selector: SensorSelector!) {{
            it: sensorOrError(sensorSelector: $selector) {{ __typename ... on Sensor {{ {fields} }} }} }}"""
        return self.ask(query, {"selector": {**REPOSITORY, "sensorName": name}})

    # -- what happened ---------------------------------------------------------------------------------------

    def events(self, run_id: str, kind: dg.DagsterEventType | None = None) -> Sequence[dg.EventLogEntry]:
        """The log of a run, or its events of one kind, oldest first."""
        return self.instance.all_logs(run_id, of_type=kind)

    def materializations(self, asset: str, run_id: str | None = None) -> list[dg.AssetMaterialization]:
        """Those of an asset, of a run or of all, newest first."""
        found = self.instance.fetch_materializations(_asset_key(asset), limit=1_000).records
        return [
            record.asset_materialization
            for record in found
            if record.asset_materialization and run_id in (None, record.run_id)
        ]

    def checks(self, asset: str, name: str, run_id: str | None = None) -> list[AssetCheckEvaluation]:
        """The evaluations of a check, of a run or of all, newest first."""
        key = dg.AssetCheckKey(_asset_key(asset), name)
        found = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=1_000)
        data = [
            record.event.dagster_event.event_specific_data
            for record in found
            if record.event and record.event.dagster_event and run_id in (None, record.run_id)
        ]
        return [one for one in data if isinstance(one, AssetCheckEvaluation)]

    def story(self, run_id: str) -> str:
        """All that Dagster knows of a run, for a failure of a test."""
        lines = [
            f"{entry.level} {entry.step_key or ''} {entry.user_message}" for entry in self.events(run_id)
        ]
        errors = [
            str(entry.dagster_event.event_specific_data)
            for entry in self.events(run_id)
            if entry.dagster_event and entry.dagster_event.is_failure
        ]
        return "\n".join([self.run_status(run_id), *lines, *errors, *map(self.tail, COMPONENTS)])

    def _launched(self, name: str, argument: str, kind: str, params: Mapping[str, Any]) -> str:
        query = f"""mutation($params: {kind}) {{ it: {name}({argument}) {{
            __typename ... on LaunchRunSuccess {{ run {{ runId }} }}
            ... on RunConfigValidationInvalid {{ errors {{ message }} }} ... on Error {{ message }} }} }}"""
        return str(self.ask(query, {"params": params})["run"]["runId"])


def _asset_key(asset: str) -> dg.AssetKey:
    return dg.AssetKey(asset.split("/"))


def _key(asset: str) -> dict[str, Sequence[str]]:
    return {"path": asset.split("/")}


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]
