"""Whole systems in simulated time: workers, supervisors and clients against one real server.

Operations do no I/O, so a scheduler can run the very operations of the product, call by call, and decide from
a seed which process is next, what breaks, and how much time passes. A checker compares the end with an
independent model. ``python -m tests.properties.simulation --help`` runs many; a seed replays its history.

Simulated of a worker (``workers.py``): registration, the exchange of outcomes and jobs with its repeats and
what follows it (verdicts, dead letters, edges to other slots, advancing), handlers that complete, fail, skip,
retry, wait and add nodes, heartbeats and what a lost or revoked lease causes, upkeep, reclaiming,
supervision, and both ends: a stop and a kill. Of others: supervisors, submissions and their repeats, cancels,
retries, restarts, extensions. Nodes may be arrays, whose elements workers run in slices (``arrays.py``).
Flows may have a deadline and a retention, nodes a queue timeout, handlers a time limit, and one queue may be
served late (``limits.py``, ``expiry.py``).

Not simulated: events that wake an idle worker (it fetches again whenever another process has written), the
second call under way of a busy worker, batches and middleware, schedules, broadcasts, differing clocks, a
server that restarts or loses its libraries, and workers of Node. A consumer is never idle for so long that it
is forgotten. Of a batch, the calls to one server may be interleaved with those of others, but all or none of
them arrive.

What the server would take from its own clock or dice comes from the scheduler: ``store.py``.
"""
