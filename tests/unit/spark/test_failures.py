"""Reasons from errors as PySpark 4 words them; of the stacks a few lines are kept."""

# ruff: noqa: E501  lines as Spark writes them

from __future__ import annotations

import pytest

from glidemq_orchestrate.spark.failures import MAX, REMEDIES, cause_and_fix, cause_of, remedy_of

CORRUPT = """An error occurred while calling o38.parquet.
: org.apache.spark.SparkException: [FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error while reading file file:/x/bad.parquet. Could not read footer.
If not, please convert it to a valid format. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFooterForFileError(QueryExecutionErrors.scala:1164)
\tat java.base/java.lang.Thread.run(Thread.java:840)
\tSuppressed: org.apache.spark.SparkException: Exception thrown in awaitResult
\t\tat org.apache.spark.util.ThreadUtils$.parmap(ThreadUtils.scala:486)
\t\t... 1 more
Caused by: java.lang.RuntimeException: file:/x/bad.parquet is not a Parquet file. Expected magic number at tail, but found [111, 32]
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:595)
"""
TASK = """An error occurred while calling o197.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 7.0 failed 1 times, most recent failure: Lost task 1.0 in stage 7.0 (TID 12) (192.0.2.2 executor driver): java.io.IOException: Mkdirs failed to create file:/proc/x (exists=false)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
"""
EXECUTOR = """An error occurred while calling o9.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 9) (10.0.0.2 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with code 137
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
"""
PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/pyspark.zip/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
  File "/venv/lib/pyspark.zip/pyspark/util.py", line 158, in wrapper
    return f(*args, **kwargs)
  File "/srv/steps.py", line 19, in clean
    raise ValueError("row of March is broken")
ValueError: row of March is broken
"""
DRIVER = """An error occurred while calling o159.load.
: java.lang.ClassNotFoundException: org.postgresql.Driver
\tat java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)
"""
COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703;
'Project ['nope]
+- Range (0, 1, step=1, splits=Some(2))
"""
JVM = """[CAST_INVALID_INPUT] The value 'a' is malformed. SQLSTATE: 22018
== SQL (line 1, position 8) ==
select cast('a' as int)

JVM stacktrace:
org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'a' is malformed. SQLSTATE: 22018
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.invalidInput(QueryExecutionErrors.scala:141)
"""

MEMORY = """Traceback (most recent call last):
  File "/srv/prog.py", line 2, in <module>
    s = SparkSession.builder.getOrCreate()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/spark/python/lib/pyspark.zip/pyspark/core/context.py", line 447, in _initialize_context
  File "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/java_gateway.py", line 1627, in __call__
  File "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py", line 327, in get_return_value
py4j.protocol.Py4JJavaError: An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkIllegalArgumentException: [INVALID_EXECUTOR_MEMORY.CONFIG_MEMORY] Insufficient executor memory: Executor memory 10485760 must be at least 471859200.
Please increase executor memory using the --executor-memory option or "spark.executor.memory" in Spark configuration. SQLSTATE: F0000
\tat org.apache.spark.memory.UnifiedMemoryManager$.getMaxMemory(UnifiedMemoryManager.scala:497)
"""
NO_DRIVER = """Traceback (most recent call last):
  File "/srv/prog.py", line 4, in <module>
    load(SparkSession.builder.getOrCreate())
  File "/srv/prog.py", line 3, in load
    s.read.format("jdbc").options(url="jdbc:postgresql://h/d", dbtable="t", driver="org.postgresql.Driver").load()
  File "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py", line 327, in get_return_value
py4j.protocol.Py4JJavaError: An error occurred while calling o28.load.
: java.lang.ClassNotFoundException: org.postgresql.Driver
\tat java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)
"""
THERE = """Traceback (most recent call last):
  File "/srv/prog.py", line 5, in <module>
    s.sparkContext.parallelize([1]).saveAsTextFile("/lake/there")
  File "/opt/spark/python/lib/pyspark.zip/pyspark/core/rdd.py", line 3406, in saveAsTextFile
  File "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py", line 327, in get_return_value
py4j.protocol.Py4JJavaError: An error occurred while calling o40.saveAsTextFile.
: org.apache.hadoop.mapred.FileAlreadyExistsException: Output directory file:/lake/there already exists
\tat org.apache.hadoop.mapred.FileOutputFormat.checkOutputSpecs(FileOutputFormat.java:131)
"""
TWICE = '[PATH_ALREADY_EXISTS] Path file:/lake/t/attempts/1795681676056-c3565b1d0a1c already exists. Set mode as "overwrite" to overwrite the existing path. SQLSTATE: 42K04'
DOTS = '[INCOMPATIBLE_COLUMN_TYPE] UNION can only be performed on tables with compatible column types. The second column of the second table is "STRING" type which is not compatible with "ARRAY<INT>" at the same column of the first table.. SQLSTATE: 42825'
PYTHON_ENDED = """An error occurred while calling o46.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (192.0.2.2 executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.execution.pyspark.udf.faulthandler.enabled' or'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:730)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
\t... 24 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.execution.pyspark.udf.faulthandler.enabled' or'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback.
\t... 1 more
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
\t... 24 more
"""
FAULT = PYTHON_ENDED.replace(
    "(crashed). Consider setting 'spark.sql.execution.pyspark.udf.faulthandler.enabled' or'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback.",
    """(crashed): Fatal Python error: Segmentation fault

Current thread 0x00007f411c81bb80 (most recent call first):
  File "/srv/steps.py", line 5 in seg
""",
)
PROGRAM_ENDED = f"""Traceback (most recent call last):
  File "/srv/prog.py", line 6, in <module>
    s.range(3).select(udf(boom)("id")).collect()
  File "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py", line 327, in get_return_value
py4j.protocol.Py4JJavaError: {PYTHON_ENDED}"""

CAUSES: list[tuple[str, str]] = [
    (PYTHON_ENDED, "the Python worker of an executor crashed or was killed"),
    (
        FAULT,
        "the Python worker of an executor crashed or was killed: Fatal Python error: Segmentation fault",
    ),
    (
        PROGRAM_ENDED,
        "the Python worker of an executor crashed or was killed (in <module>, /srv/prog.py:6)",
    ),
    (
        "An error occurred while calling None.None",
        "the JVM of the session did not answer (An error occurred while calling None.None)",
    ),
    (
        "Answer from Java side is empty",
        "the JVM of the session did not answer (Answer from Java side is empty)",
    ),
    (
        MEMORY,
        (
            "SparkIllegalArgumentException: [INVALID_EXECUTOR_MEMORY.CONFIG_MEMORY] Insufficient executor "
            "memory: Executor memory 10485760 must be at least 471859200. Please increase executor memory "
            'using the --executor-memory option or "spark.executor.memory" in Spark configuration. '
            "(in <module>, /srv/prog.py:2)"
        ),
    ),
    (NO_DRIVER, "ClassNotFoundException: org.postgresql.Driver (in load, /srv/prog.py:3)"),
    (
        THERE,
        (
            "FileAlreadyExistsException: Output directory file:/lake/there already exists "
            "(in <module>, /srv/prog.py:5)"
        ),
    ),
    (
        CORRUPT,
        (
            "RuntimeException: file:/x/bad.parquet is not a Parquet file. Expected magic number at tail, but "
            "found [111, 32] (SparkException: [FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error"
        ),
    ),
    (TASK, "IOException: Mkdirs failed to create file:/proc/x (exists=false)"),
    (
        EXECUTOR,
        "the executor was lost: ExecutorLostFailure (executor 3 exited caused by one of the running",
    ),
    (PYTHON, "ValueError: row of March is broken (in clean, /srv/steps.py:19)"),
    (DRIVER, "ClassNotFoundException: org.postgresql.Driver"),
    (COLUMN, "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved."),
    (JVM, "[CAST_INVALID_INPUT] The value 'a' is malformed."),
    ("", ""),
    ("boom", "boom"),
    ("and so on...", "and so on..."),
]

ERRORS_AND_REMEDIES: list[tuple[str, str]] = [
    (CORRUPT, "the file is damaged"),
    (TASK, "give the user of the worker"),
    (DRIVER, "spark.jars.packages"),
    (EXECUTOR, "more memory"),
    (PYTHON_ENDED, "spark.executor.memoryOverhead"),
    ("An error occurred while calling None.None", "raise spark.driver.memory"),
    ("Answer from Java side is empty", "raise spark.driver.memory"),
    ("java.lang.OutOfMemoryError: Java heap space", "more memory"),
    ("Total size of results is bigger than spark.driver.maxResultSize (1g)", "instead of collecting"),
    ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", "PYSPARK_PYTHON"),
    ("ModuleNotFoundError: No module named 'numpy'", "install it there"),
    ("Could not serialize object: TypeError: cannot pickle '_thread.lock' object", "inside the function"),
    ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading", "its own path"),
    ("[PATH_ALREADY_EXISTS] Path file:/x already exists.", 'mode("overwrite")'),
    (TWICE, "publish once per location"),
    (
        "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/x/file",
        "name a directory",
    ),
    ("java.net.UnknownHostException: nosuchhost", "the host in the URI"),
    ("All masters are unresponsive! Giving up.", "GLIDEMQ_SPARK_MASTER"),
    ("java.lang.UnsupportedClassVersionError: x has been compiled by a more recent version", "JAVA_HOME"),
    ("java.io.IOException: No space left on device", "free space on the full disk"),
]


def test_the_innermost_cause_comes_first_and_no_stack(subtests: pytest.Subtests) -> None:
    for text, cause in CAUSES:
        with subtests.test(text=text):
            found = cause_of(text)
            assert found.startswith(cause)
            assert "\tat " not in found
            assert "\n" not in found


def test_a_message_has_one_full_stop_and_repeats_no_remedy() -> None:
    assert cause_of(DOTS).endswith("at the same column of the first table.")
    assert cause_of(DOTS)[-2] != "."
    assert cause_of(TWICE).endswith("1795681676056-c3565b1d0a1c already exists.")


def test_a_long_message_is_cut_and_its_remedy_is_not() -> None:
    found = cause_and_fix(f"[PATH_NOT_FOUND] {'x' * 10_000}")
    assert len(found) < MAX + 200
    assert found.endswith("that the worker can reach the path")


def test_each_error_has_its_remedy(subtests: pytest.Subtests) -> None:
    for text, remedy in ERRORS_AND_REMEDIES:
        with subtests.test(text=text):
            assert remedy in remedy_of(text)


def test_nothing_is_advised_where_nothing_is_known() -> None:
    assert cause_and_fix(COLUMN) == cause_of(COLUMN)
    assert remedy_of("ValueError: the row of March is broken") == ""


def test_every_remedy_is_a_part_of_a_sentence() -> None:
    assert all(text and text[0].islower() and not text.endswith(".") for _, text in REMEDIES)


OF_SPARK_3 = """[TABLE_OR_VIEW_NOT_FOUND] The table or view `no_such_table` cannot be found.; line 1 pos 23;
'Project [unresolvedalias(hunter2, None)]
+- 'UnresolvedRelation [no_such_table], [], false
"""


def test_the_plan_that_spark_3_adds_with_the_values_in_it_is_left_out() -> None:
    assert (
        cause_of(OF_SPARK_3) == "[TABLE_OR_VIEW_NOT_FOUND] The table or view `no_such_table` cannot be found."
    )
