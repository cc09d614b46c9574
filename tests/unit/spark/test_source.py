"""The data source without Spark's JVM: its options and filters, rows as jobs, and registration."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import datasource as api
from pyspark.sql import types

from glidemq_orchestrate.errors import ConfigurationError, InvalidJob
from glidemq_orchestrate.settings import ENV_URL, ConnectionSettings
from glidemq_orchestrate.spark.source import registration
from glidemq_orchestrate.spark.source.options import Options
from glidemq_orchestrate.spark.source.part import ALL_TIMES, Times, grouped
from glidemq_orchestrate.spark.source.reader import TableReader
from glidemq_orchestrate.spark.source.rows import WRITE, RowJobs, is_over, job_id, write_id_of
from glidemq_orchestrate.spark.source.scan import Scan, scan_of
from glidemq_orchestrate.spark.source.source import GlideMQDataSource
from glidemq_orchestrate.spark.source.stream import EventStreamReader
from glidemq_orchestrate.spark.source.tables import TABLES, record_batch

URL = "valkey://127.0.0.1:1"
SCHEMA = types.StructType(
    [
        types.StructField("id", types.LongType()),
        types.StructField("half", types.DoubleType()),
        types.StructField("text", types.StringType()),
    ]
)
PLACE = {"url": URL, "queue": "etl", "name": "load"}

WRONG_READS: list[tuple[dict[str, str], str]] = [
    ({}, "a read of glidemq needs the option table: one of jobs, flows, nodes, elements, events; got ''"),
    ({"table": "job"}, "one of jobs, flows, nodes, elements, events; got 'job'"),
    ({"table": "elements", "node": "a"}, "a read of the glidemq table elements needs the option flow_id"),
    ({"table": "elements", "flow_id": "f"}, "a read of the glidemq table elements needs the option node"),
    (
        {"table": "jobs", "stat": "x"},
        "a read of the glidemq table jobs has no option stat; did you mean state",
    ),
    ({"table": "events", "state": "x"}, "the glidemq table events has no option state; it has ca, cert"),
    (
        {"table": "jobs", "state": "done"},
        "the option state of a read of the glidemq table jobs must be one of",
    ),
    ({"table": "jobs", "queue": "[1]"}, 'must be one text, or several as a JSON array: ["a", "b"]'),
    ({"table": "jobs", "queue": '["a", "b:c"]'}, "queue name 'b:c' is not valid"),
    ({"table": "jobs", "since": "2026-01-01"}, "must be a time with its zone, such as 2026-01-31T06"),
    ({"table": "jobs", "rows_per_partition": "0"}, "must be a whole number from 1 to 10000000, got '0'"),
    ({"table": "jobs", "payload": "maybe"}, "must be true or false, got 'maybe'"),
    ({"table": "flows", "generations": "old"}, "must be one of current, all, got 'old'"),
    (
        {"table": "jobs", "since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        "the option until of a read of the glidemq table jobs must be later than since",
    ),
]

WRONG_WRITES: list[tuple[dict[str, str], str]] = [
    (
        {"key": "none"},
        "the option key names a column 'none', and there is none: there are id, half, text",
    ),
    (
        {"key": '["id", "half"]'},
        "column half of the option key is of type double; a key must be a string",
    ),
    ({"kee": "id"}, "a write to glidemq has no option kee; did you mean key?"),
    ({"queue": "a:b"}, "queue name 'a:b' is not valid"),
    ({"queue": ""}, 'a write to glidemq needs the option queue: .option("queue", ...)'),
    ({"name": ""}, "a write to glidemq needs the option name"),
    ({"name": "x" * 2000}, "the option name: job name 'xxx"),
    ({"attempts": "0"}, "the options of a write to glidemq: options: attempts must be a whole number"),
    (
        {"attempts": "three"},
        "the options of a write to glidemq: options.attempts: 'three' is not a whole number",
    ),
    ({"options": "[1]"}, "the option options of a write to glidemq must be a JSON object such as"),
    ({"options": '{"attempt": 1}'}, "options: there is no field 'attempt'; did you mean 'attempts'?"),
    ({"priority": "text"}, "column text of the option priority must be a whole number, not string: cast"),
    (
        {"ordering_key": "id"},
        "column id of the option ordering_key must be a string, not bigint: cast it",
    ),
    ({"data": "none"}, "the option data names a column 'none'"),
    ({"remember": "P900D"}, "must be at most 365 days"),
    ({"delay": "inf"}, "the options of a write to glidemq: options.delay: "),
    ({"delay": "1e300"}, "the options of a write to glidemq: options.delay: "),
    ({"delay": "nan"}, "the options of a write to glidemq: options.delay: "),
    ({"delay": "-5"}, "the options of a write to glidemq: options: delay must not be negative, got"),
    ({"priority": "-5"}, "the options of a write to glidemq: options: priority must be a whole number"),
    ({"remember": "soon"}, "the option remember of a write to glidemq must be a duration such as"),
]

WRONG_VALUES: list[tuple[str, int, str]] = [
    ("priority", -1, "priority must be a whole number of at least 0, got -1"),
    ("priority", 2049, "priority must be at most 2048, got 2049"),
    ("delay", -5, "delay in seconds must be a whole number of at least 0, got -5"),
    ("delay", 10**15, "delay in seconds must be at most 864000000, got 1000000000000000"),
]

TYPES_WITHOUT_JSON: list[tuple[types.DataType, str]] = [
    (types.YearMonthIntervalType(), "interval"),
    (types.VariantType(), "variant"),
]


def rows_of(**options: str) -> RowJobs:
    return RowJobs.read(Options(PLACE | options, WRITE, "a write to glidemq"), SCHEMA)


def test_a_read_that_cannot_be_is_refused_in_a_sentence(subtests: pytest.Subtests) -> None:
    for options, why in WRONG_READS:
        with subtests.test(options=options):
            with pytest.raises(ConfigurationError) as told:
                scan_of(options)
            assert why in str(told.value)


def test_a_write_that_cannot_be_is_refused_in_a_sentence(subtests: pytest.Subtests) -> None:
    for options, why in WRONG_WRITES:
        with subtests.test(options=options):
            with pytest.raises(ConfigurationError) as told:
                rows_of(**options)
            assert why in str(told.value)


def test_an_empty_write_id_is_refused_by_its_name() -> None:
    options = Options(PLACE | {"write_id": ""}, WRITE, "a write to glidemq")
    why = "the option write_id of a write to glidemq must be 1 to 256 characters, no control characters, got"
    with pytest.raises(ConfigurationError, match=why):
        write_id_of(options, "made")
    assert write_id_of(Options(PLACE, WRITE, "a write"), "made") == "made"


def test_a_frame_without_columns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the frame has no columns: its rows would all be one job"):
        RowJobs.read(Options(PLACE, WRITE, "a write"), types.StructType([]))


def test_a_value_that_no_job_can_have_is_told_with_its_column_and_row(subtests: pytest.Subtests) -> None:
    for option, value, why in WRONG_VALUES:
        with subtests.test(option=option):
            rows = rows_of(key="text", **{option: "id"})
            [good] = rows.jobs("w", [(7, 0.5, "a")])
            with pytest.raises(InvalidJob) as told:
                list(rows.jobs("w", [(value, 0.5, "a")]))
            assert (
                str(told.value)
                == f"{why}, in column id of the row of job {good.options.job_id} for queue etl"
            )


def test_a_wrong_ordering_key_is_told_with_its_column_and_row() -> None:
    why = r"ordering\.key '' is not valid.*, in column text of the row of job row-"
    with pytest.raises(InvalidJob, match=why):
        list(rows_of(key="id", ordering_key="text").jobs("w", [(1, 0.5, "")]))


def test_a_type_without_json_is_refused(subtests: pytest.Subtests) -> None:
    for kind, name in TYPES_WITHOUT_JSON:
        with subtests.test(kind=kind):
            inner = types.ArrayType(types.StructType([types.StructField("x", kind)]))
            schema = types.StructType([types.StructField("a", inner)])
            with pytest.raises(
                ConfigurationError, match=rf"column a\.x is of type {name}.*cast it to string"
            ):
                RowJobs.read(Options(PLACE, WRITE, "a write"), schema)


def test_secrets_are_in_no_error() -> None:
    for name in ("url", "password"):
        with pytest.raises(ConfigurationError) as told:
            Options({"url": URL, name: "s3cret", "verify": "s3"}, (), "a read").settings()
        assert "s3cret" not in str(told.value)
    settings = Options({"url": URL, "password": "s3cret", "SSL_KeyFile": "k", "cert": "c"}, (), "a read")
    with pytest.raises(ConfigurationError, match="needs TLS"):
        settings.settings()


def test_the_server_is_that_of_the_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_URL, "valkey://there:7/3")
    found = Options({"socket_timeout": "2.5", "prefix": "p", "user": "u"}, (), "a read").settings()
    assert (found.db, found.socket_timeout, found.prefix, found.user) == (3, 2.5, "p", "u")
    monkeypatch.delenv(ENV_URL)
    with pytest.raises(ConfigurationError, match="no server URL"):
        Options({}, (), "a read").settings()


def test_filters_narrow_what_is_read() -> None:
    wanted = Scan("jobs", queues=("a", "b"))
    assert wanted.narrowed("queue", "in", ["b", "c"]).queues == ("b",)
    assert wanted.narrowed("state", "=", "nonsense").job_states == frozenset()
    assert wanted.narrowed("state", "<", "completed") == wanted
    assert wanted.narrowed("queue", "=", None) == wanted
    assert wanted.narrowed("name", "=", "x") == wanted
    moment = datetime.fromtimestamp(10, UTC) + timedelta(microseconds=1500)
    assert wanted.narrowed("finished_at", ">", moment).times == Times(low=10_001)
    assert wanted.narrowed("finished_at", "<=", moment).times == Times(high=10_002)
    assert wanted.narrowed("finished_at", "=", moment).times == Times(10_001, 10_002)
    assert wanted.narrowed("finished_at", "in", [moment]).times == ALL_TIMES
    assert Scan("nodes").narrowed("flow_id", "=", "f").flow_ids == ("f",)


def test_the_reader_passes_for_one_that_pushes_nothing_until_it_is_asked() -> None:
    reader = TableReader(ConnectionSettings(URL), Scan("jobs"))
    push: Any = reader.pushFilters
    assert push.__func__ is api.DataSourceReader.pushFilters
    assert type(reader).pushFilters is api.DataSourceReader.pushFilters
    filters = [api.EqualTo(("queue",), "etl"), api.Not(api.EqualTo(("state",), "failed"))]
    assert push(filters) == filters, "Spark applies all of them again"
    assert (reader._scan.queues, reader._scan.states) == (("etl",), None)


def test_the_id_of_a_job_is_made_from_the_write_and_the_key() -> None:
    def ids(rows: RowJobs, write_id: str, *data: tuple[Any, ...]) -> list[str | None]:
        return [job.options.job_id for job in rows.jobs(write_id, data)]

    keyed, whole = rows_of(key="id"), rows_of()
    assert ids(keyed, "w", (1, 0.5, "a"), (1, None, None)) == [ids(keyed, "w", (1, 0.1, "c"))[0]] * 2
    different = [
        ids(keyed, "w", (2, 0.5, "a")),
        ids(keyed, "v", (1, 0.5, "a")),
        ids(whole, "w", (1, 0.5, "a")),
    ]
    assert len({*map(tuple, different), tuple(ids(keyed, "w", (1, 0.5, "a")))}) == 4
    [job] = rows_of(key="id", remember="60").jobs("w", [(1, float("nan"), None)])
    assert (job.options.job_id or "").endswith("-60")
    assert job.data == {"id": 1, "half": "NaN", "text": None}
    with pytest.raises(ConfigurationError, match="a row for queue etl has null in its key, in column text"):
        list(rows_of(key='["id", "text"]').jobs("w", [(1, 0.5, None)]))


def test_a_row_is_forgotten_after_its_time() -> None:
    entry = f"{job_id('0' * 32, timedelta(seconds=60))}:1000"
    assert not is_over(entry, 1000 + 60_000 + 3_600_000)
    assert is_over(entry, 1001 + 60_000 + 3_600_000)
    assert not is_over("row-1:1000", 10**15)


def test_small_parts_are_read_together() -> None:
    assert list(grouped("abcdef", [1, 2, 3, 9, 1, 1], 5)) == [("a", "b"), ("c",), ("d",), ("e", "f")]


def test_every_column_has_a_meaning_and_empty_rows_their_types() -> None:
    for table, columns in TABLES.items():
        assert len({column.name for column in columns}) == len(columns)
        assert not any("'" in column.meaning or ";;" in column.meaning for column in columns)
        batch = record_batch(table, [[None] * len(columns)])
        assert batch.schema.names == [column.name for column in columns]


def test_the_columns_of_a_table_are_its_own() -> None:
    source = GlideMQDataSource(api.CaseInsensitiveDict({"url": URL, "table": "events"}))
    why = r"glidemq table events are its own: leave out \.schema"
    with pytest.raises(ConfigurationError, match=why):
        source.reader(SCHEMA)
    with pytest.raises(ConfigurationError, match=why):
        source.streamReader(SCHEMA).initialOffset()


def test_a_stream_with_wrong_options_says_so_whatever_it_is_asked_first() -> None:
    stream = GlideMQDataSource(api.CaseInsensitiveDict({"url": URL, "table": "jobs"})).streamReader(SCHEMA)
    stream.stop()
    asking: list[Callable[[], Any]] = [
        stream.initialOffset,
        stream.latestOffset,
        lambda: stream.partitions({}, {}),
        lambda: stream.read(api.InputPartition(None)),
    ]
    for ask in asking:
        with pytest.raises(ConfigurationError, match="only the table events can be read as a stream"):
            ask()


def test_only_events_are_a_stream() -> None:
    with pytest.raises(ConfigurationError, match="only the table events can be read as a stream"):
        EventStreamReader.of({"url": URL, "table": "jobs"})
    source = GlideMQDataSource(
        api.CaseInsensitiveDict({"url": URL, "table": "events", "failOnDataLoss": "no"})
    )
    with pytest.raises(
        ConfigurationError, match="failOnDataLoss of a stream of glidemq must be true or false"
    ):
        source.schema()


def test_an_old_pyspark_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    registration.source_class.cache_clear()
    monkeypatch.delattr("pyspark.sql.datasource")
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    with pytest.raises(ConfigurationError, match="the data source glidemq needs PySpark 4 and pyarrow: pip"):
        registration.source_class()


def test_threads_of_a_step_register_the_data_source_one_after_the_other() -> None:
    inside: list[int] = []
    together: list[int] = []

    class Session:
        """Notes how many threads register at once."""

        @property
        def dataSource(self) -> Session:  # noqa: N802  Spark's
            return self

        def register(self, source: type[api.DataSource]) -> None:
            assert source is GlideMQDataSource
            inside.append(1)
            time.sleep(0.02)
            together.append(len(inside))
            inside.pop()

    session: Any = Session()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(registration.register, [session] * 4))
    assert together == [1, 1, 1, 1]


def test_importing_the_package_imports_no_pyspark() -> None:
    code = "import sys, glidemq_orchestrate.spark; print([name for name in sys.modules if 'pyspark' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
