"""A moment without the connection: whoever waits warns, looks it up again, and goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import redis
from airflow_provider_glidemq.exceptions import GlideMQException
from airflow_provider_glidemq.hooks import glidemq
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook, LookupFailed, looking_up
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.version_compat import AirflowFailException

from glidemq_orchestrate import EmbeddedServer, FlowProducer, FlowSpec, Worker
from glidemq_orchestrate.runs import steps
from tests.providers.airflow.builders import FLOW_ID, Contexts, Valkey, chain, fired, submit, until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "reconnect_pauses", lambda: repeat(0.1))


@pytest.fixture
def control(valkey: Valkey) -> Iterator[Any]:
    with redis.Redis.from_url(valkey.url.replace("valkey", "redis"), decode_responses=True) as client:
        yield client
        for name in ("ada", "bob"):
            client.acl_deluser(name)


def users(valkey: Valkey, monkeypatch: pytest.MonkeyPatch, login: str, password: str) -> None:
    """Let the connection name this user."""
    connection = {
        "conn_type": "glidemq",
        "host": "127.0.0.1",
        "port": int(valkey.url.rpartition(":")[2]),
        "login": login,
        "password": password,
        "extra": {"prefix": valkey.prefix},
    }
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps(connection))


def user(control: Any, *words: str) -> None:
    control.execute_command("ACL", "SETUSER", *words)


def warnings(trigger: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(trigger.log, "warning", lambda text, *args: lines.append(text % args))
    return lines


class TestATrigger:
    async def test_that_cannot_look_the_connection_up_goes_on_when_it_can(
        self, valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        submit(valkey, chain("wait"), "f")
        secret, looked, is_away = "hunter2", list[str](), [True]
        real = GlideMQHook.aget_connection

        async def look_up(conn_id: str) -> Any:
            looked.append(conn_id)
            if is_away[0]:
                raise RuntimeError(f"https://vault:{secret}@vault is away")
            return await real(conn_id)

        monkeypatch.setattr(GlideMQHook, "aget_connection", staticmethod(look_up))
        triggers = [GlideMQFlowTrigger(flow_id="f", glidemq_conn_id="glidemq_default") for _ in range(50)]
        told = warnings(triggers[0], monkeypatch)
        watching = [asyncio.create_task(fired(one, 40)) for one in triggers]
        await until(lambda: len(told) >= 3)
        assert len(looked) < 3 * len(triggers), "those who wait for a look-up share its failure"
        assert told[0].endswith("connection glidemq_default cannot be looked up in Airflow: RuntimeError")
        assert secret not in "".join(told)
        is_away[0] = False
        valkey.gate.set()
        assert {one["status"] for one in await asyncio.gather(*watching)} == {"completed"}

    async def test_whose_password_is_rotated_finds_the_new_one(
        self, valkey: Valkey, worker: Worker, control: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user(control, "ada", "resetpass", "on", ">old", "+@all", "~*", "&*")
        users(valkey, monkeypatch, "ada", "old")
        submit(valkey, chain("wait"), "f")
        trigger = GlideMQFlowTrigger(flow_id="f")
        told = warnings(trigger, monkeypatch)
        watching = asyncio.create_task(fired(trigger, 40))
        await until(lambda: trigger.generation is not None)
        user(control, "ada", "resetpass", ">new")
        control.client_kill_filter(_type="normal", user="ada")
        await until(lambda: any("refused the user or password" in line for line in told))
        assert all("cannot be watched over connection glidemq_default, retrying in" in line for line in told)
        users(valkey, monkeypatch, "ada", "new")
        valkey.gate.set()
        assert (await watching)["status"] == "completed"

    async def test_that_lacks_a_right_for_a_while_waits_for_it(
        self, valkey: Valkey, worker: Worker, control: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user(control, "bob", "resetpass", "on", ">p", "+@all", "~*", "&*")
        users(valkey, monkeypatch, "bob", "p")
        submit(valkey, chain("wait"), "f")
        user(control, "bob", "-xread")
        trigger = GlideMQFlowTrigger(flow_id="f")
        told = warnings(trigger, monkeypatch)
        watching = asyncio.create_task(fired(trigger, 40))
        await until(lambda: len([line for line in told if "permission" in line]) >= 2)
        user(control, "bob", "+xread")
        valkey.gate.set()
        assert (await watching)["status"] == "completed"

    async def test_is_an_error_when_it_lasts(self, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(glidemq, "PATIENCE_SECONDS", 0.5)
        users(valkey, monkeypatch, "nobody", "x")
        told = await fired(GlideMQFlowTrigger(flow_id="f"))
        assert (told["status"], "refused the user or password" in told["reason"]) == ("error", True)


class TestAProcessOfATask:
    """It waits itself, or reads the outcome after its trigger has fired."""

    @pytest.fixture
    def blip(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
        """From the n-th look-up on, the connection cannot be told three times."""

        def begin(after: int) -> list[str]:
            looked: list[str] = []
            real = GlideMQHook.get_connection

            def look_up(conn_id: str) -> Any:
                looked.append(conn_id)
                if after < len(looked) <= after + 3:
                    raise RuntimeError("away")
                return real(conn_id)

            monkeypatch.setattr(GlideMQHook, "get_connection", staticmethod(look_up))
            return looked

        return begin

    def operator(self, spec: FlowSpec, **kwargs: Any) -> GlideMQFlowOperator:
        return GlideMQFlowOperator(task_id="t", flow=spec, result="all", defer_after=0.0, **kwargs)

    def test_resumes(
        self, valkey: Valkey, worker: Worker, context: Contexts, blip: Callable[[int], list[str]]
    ) -> None:
        with valkey.producer() as producer:
            producer.submit(chain(), flow_id=FLOW_ID).wait(timeout=timedelta(seconds=20))
        looked = blip(0)
        event = {"status": "completed", "flow_id": FLOW_ID}
        assert self.operator(chain()).execute_complete(context(), event)["first"] == 1
        assert len(looked) == 4

    def test_waits_in_its_slot_through_a_rotation(
        self, valkey: Valkey, worker: Worker, context: Contexts, control: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user(control, "ada", "resetpass", "on", ">old", "+@all", "~*", "&*")
        users(valkey, monkeypatch, "ada", "old")
        told = list[str]()
        made = self.operator(chain("wait"), deferrable=False, logging_interval=0.2, callbacks=())

        def warn(text: str, *args: Any) -> None:
            told.append(text % args)
            if len(told) == 2:
                users(valkey, monkeypatch, "ada", "new")
                valkey.gate.set()

        monkeypatch.setattr(made.log, "warning", warn)

        def rotate() -> None:
            user(control, "ada", "resetpass", ">new")
            control.client_kill_filter(_type="normal", user="ada")

        timer = threading.Timer(1.0, rotate)
        timer.start()
        assert made.execute(context())["last"] == {"rows": 3}
        timer.join()
        assert len(told) >= 2

    def test_waits_in_its_slot_through_a_restart_of_the_server(
        self, context: Contexts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        made = self.operator(chain(), deferrable=False, logging_interval=0.2, require_workers=False)
        told, waits, lost = list[str](), threading.Event(), threading.Event()

        def warn(text: str, *args: Any) -> None:
            told.append(text % args)
            lost.set()

        def inform(text: str, *_: Any) -> None:
            if "nodes completed" in text:
                waits.set()

        monkeypatch.setattr(made.log, "warning", warn)
        monkeypatch.setattr(made.log, "info", inform)
        waiting = threading.Thread(target=made.execute, args=[context()])
        with EmbeddedServer(data_dir=tmp_path) as server:
            port = int(server.url.rpartition(":")[2])
            monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", f"glidemq://127.0.0.1:{port}")
            waiting.start()
            assert waits.wait(30)
        assert lost.wait(30)
        with EmbeddedServer(data_dir=tmp_path, port=port) as server, FlowProducer(server.url) as producer:
            for node in ("first", "middle", "last"):
                producer.get(FLOW_ID).complete_node(node, 1)
            waiting.join(60)
        assert not waiting.is_alive()
        failure = f"Flow {FLOW_ID} cannot be watched over connection glidemq_default, retrying in "
        assert all(line.startswith(failure) for line in told)

    def test_fails_at_once_when_nothing_is_submitted_yet(
        self, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users(valkey, monkeypatch, "nobody", "x")
        with pytest.raises(AirflowFailException, match="refused the user or password"):
            self.operator(chain()).execute(context())
        monkeypatch.delenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT")
        defined = (
            "glidemq_default is not defined. Fix: add it in Airflow, or set AIRFLOW_CONN_GLIDEMQ_DEFAULT"
        )
        with pytest.raises(GlideMQException, match=defined) as caught:
            self.operator(chain()).execute(context())
        assert not isinstance(caught.value, AirflowFailException), "a retry may find it"

    def test_names_the_connection_whose_server_does_not_answer(
        self, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", "glidemq://127.0.0.1:1")
        with pytest.raises(GlideMQException, match="connection glidemq_default: cannot connect to valkey://"):
            self.operator(chain()).execute(context())

    @pytest.mark.parametrize("deferrable", [True, False])
    def test_of_a_sensor(
        self,
        valkey: Valkey,
        worker: Worker,
        context: Contexts,
        blip: Callable[[int], list[str]],
        deferrable: Any,
    ) -> None:
        made = GlideMQFlowSensor(
            task_id="s", flow_id="f", deferrable=deferrable, poke_interval=0.1, timeout=60, result="all"
        )
        if deferrable:
            with valkey.producer() as producer:
                producer.submit(chain(), flow_id="f").wait(timeout=timedelta(seconds=20))
            looked = blip(0)
            found = made.execute_complete(context(), {"status": "completed"})
        else:
            looked = blip(2)
            timer = threading.Timer(0.5, submit, [valkey, chain(), "f"])
            timer.start()
            found = made.execute(context())
            timer.join()
        assert found["first"] == 1
        assert len(looked) >= 4


def test_what_a_secrets_backend_says_is_not_repeated() -> None:
    with pytest.raises(LookupFailed, match=r"connection c cannot be looked up .*: OSError$"), looking_up("c"):
        raise OSError("password=hunter2")
