"""URLs and connection settings: a password is in each, and no error, repr or advice may show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from hypothesis import strategies as st

from glidemq_orchestrate import ConnectionSettings, Queue
from glidemq_orchestrate.errors import ConfigurationError, TransportError
from glidemq_orchestrate.io.connect import async_pool, sync_pool
from glidemq_orchestrate.settings import Endpoint
from tests.fuzz import odd
from tests.fuzz.entry import Entry, Target, outcome
from tests.fuzz.secret import PASSWORD, PASSWORD_END, refuse
from tests.fuzz.violation import Violation

SCHEMES: Final = st.sampled_from(
    [
        f"{tcp}{kind}"
        for tcp in ("valkey", "valkeys", "redis", "rediss")
        for kind in ("", "+cluster", "+sentinel")
    ]
    + ["unix", "valkey+unix", "http", "", "valkey+", "valkey+cluster+x", "VALKEY", "valkey ", "+", "file"]
)
RESERVED: Final = st.text(
    st.sampled_from([*list("/?#@:%&=+[]{}<>\\^`| ~!$'()*,;\""), "ä", "�", "\n"]), max_size=4
)
SECRETS: Final = st.builds(lambda middle: f"{PASSWORD}{middle}{PASSWORD_END}", RESERVED)
QUOTED: Final = st.builds(
    lambda middle: f"{PASSWORD}{''.join(f'%{code:02X}' for code in middle)}{PASSWORD_END}",
    st.binary(max_size=4),
)
HOSTS: Final = (
    st.sampled_from(
        [
            "h",
            "localhost",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:1",
            "::1",
            "[",
            "h:",
            "h:0",
            "h:99999",
            "h:x",
            "h:-1",
            "a,b",
            "a:1,b:2",
            ",",
            "",
            "h h",
            "xn--a",
            "ä",
            "a" * 300,
            ".",
            "h..x",
            "[fe80::1%25lo]",
            "h:\u0661",
            "é:1",
            "%68",
        ]
    )
    | odd.STRINGS
)
PATHS: Final = st.sampled_from(
    ["", "/", "/0", "/1", "/main", "/main/2", "/x/y/z", "//", "/%2F", "/9999999", "/-1"]
)
QUERY: Final = st.sampled_from(
    [
        "db=1",
        "db=x",
        "ca=/x",
        "ca=",
        "cert=/c",
        "key=/k",
        "verify=no",
        "verify=maybe",
        "connect_timeout=1",
        "connect_timeout=nan",
        "socket_timeout=0",
        "socket_timeout=1e999",
        "user=u",
        "username=u",
        "",
        "&",
        "=",
        "a",
        "ssl_cert_reqs=none",
        "sentinel_user=s",
        "unknown=1",
        "verify=�",
        "%",
        "%zz=1",
        "db=1&db=2",
    ]
)
OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "prefix": odd.ANY,
        "connect_timeout": odd.ANY,
        "socket_timeout": odd.ANY,
        "user": st.none() | odd.STRINGS,
        "password": SECRETS,
        "ca": st.none() | odd.STRINGS,
        "cert": st.none() | odd.STRINGS,
        "key": st.none() | odd.STRINGS,
        "verify": odd.ANY,
        "sentinel_user": st.none() | odd.STRINGS,
        "sentinel_password": SECRETS,
    },
)


@st.composite
def urls(draw: st.DrawFn) -> str:
    """A URL with a password at the place for it, or where people put it by mistake."""
    secret = draw(SECRETS | QUOTED)
    where = draw(st.sampled_from(["user", "user", "user", "query", "both", "sentinel", "path", "bare"]))
    info = (
        f"{draw(st.sampled_from(['', 'u', 'u:x', '%', '@']))}:{secret}@" if where in ("user", "both") else ""
    )
    query = draw(st.lists(QUERY, max_size=2))
    query += {"query": [f"password={secret}"], "both": [f"sentinel_password={secret}"]}.get(where, [])
    query += [f"sentinel_password={secret}"] if where == "sentinel" else []
    scheme = draw(SCHEMES)
    # The path of a socket and the name of a service may be shown, unless they are refused.
    is_named = "sentinel" in scheme or "unix" in scheme
    path = f"/{secret}{'%00' if is_named else ''}" if where == "path" else draw(PATHS)
    url = f"{scheme}://{info}{draw(HOSTS)}{path}{'?' if query else ''}{'&'.join(query)}"
    if where == "bare":
        url = draw(
            st.sampled_from([secret, f"u:{secret}@h", f":{secret}", f"{secret}://h", f"valkey:{secret}"])
        )
    return url


def read(case: tuple[str, dict[str, Any]]) -> None:
    """Make settings, show them in every way, and prepare connections without opening one."""
    url, options = case
    settings, _ = outcome(lambda: ConnectionSettings(url, **options), (ConfigurationError,))
    if settings is None:
        return
    place = Endpoint("other", 1)
    shown = [
        repr(settings),
        str(settings),
        settings.where,
        settings.node(place),
        settings.node(settings.places[0]),
    ]
    cluster, _ = outcome(lambda: settings.as_cluster(place), (ConfigurationError,))
    shown += [repr(cluster), repr(Queue("etl", settings))]
    if cluster and (cluster.user, cluster.password) != (settings.user, settings.password):
        raise Violation("the settings of a cluster have another user or password", "as_cluster")
    pools: tuple[Any, ...] = (sync_pool, async_pool)
    for pool in pools:
        outcome(partial(pool, settings, place), (ConfigurationError,))
    for text in shown:
        refuse("a repr of settings", text)
    if url.startswith(("valkey://", "unix://")) and str(settings.places[0]) in ("127.0.0.1:1", "[::1]:1"):
        outcome(lambda: Queue("etl", settings).counts(), (ConfigurationError, TransportError))


@contextmanager
def opened() -> Iterator[Target]:
    """Needs nothing."""
    yield Target(st.tuples(urls(), OPTIONS | st.just({})), read)


ENTRY: Final = Entry("addresses", "URLs and ConnectionSettings", 20, opened)
