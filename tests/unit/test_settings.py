"""Where the server is, and that the password is never shown."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glidemq_orchestrate import Queue
from glidemq_orchestrate.clients.servers import examine
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed
from glidemq_orchestrate.settings import ENV_URL, SCHEMES, ConnectionSettings, Endpoint

PLACES: list[tuple[str, str, bool, list[str], str, int]] = [
    ("valkey://h:1/2", "single", False, ["h:1"], "", 2),
    ("valkeys://h", "single", True, ["h:6379"], "", 0),
    ("redis://u:p@h", "single", False, ["h:6379"], "", 0),
    ("rediss://[::1]:7?db=3", "single", True, ["[::1]:7"], "", 3),
    ("valkey://", "single", False, ["localhost:6379"], "", 0),
    ("unix:///tmp/x%20y.sock?db=4", "single", False, ["/tmp/x y.sock"], "", 4),
    ("valkey+unix:///tmp/x.sock", "single", False, ["/tmp/x.sock"], "", 0),
    ("valkey+cluster://a:1,b", "cluster", False, ["a:1", "b:6379"], "", 0),
    ("rediss+cluster://u:p@a:1", "cluster", True, ["a:1"], "", 0),
    ("valkey+sentinel://a,b:2/main", "sentinel", False, ["a:26379", "b:2"], "main", 0),
    ("valkeys+sentinel://u:p@a/my%2Fmain/5", "sentinel", True, ["a:26379"], "my/main", 5),
]

CONFIRMATIONS: list[tuple[str | None, tuple[bool, int] | None]] = [
    (None, None),
    ("disk", (True, 0)),
    ("replicas:1", (False, 1)),
    ("replicas:12", (False, 12)),
    ("disk,replicas:2", (True, 2)),
]

BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    (
        "valkey://h?db=1&passwort=hunter2",
        {},
        "option 2 in the query of the URL is unknown: use one of user",
    ),
    ("valkey://h/hunter2", {}, "db in the URL must be a whole number"),
    ("valkey://h?confirm=disc", {}, "confirm must be disk, replicas:N or disk,replicas:N"),
    ("valkey://h", {"confirm": ""}, "confirm must be disk"),
    ("valkey://h", {"confirm": "disk,"}, "confirm must be disk"),
    ("valkey://h", {"confirm": "replicas:0"}, "with N from 1 to 99"),
    ("valkey://h", {"confirm": "replicas:1,disk"}, "confirm must be disk"),
    ("valkey://h", {"confirm": True}, "confirm must be disk"),
    ("valkey://h?confirm_timeout=0", {}, "confirm_timeout in the query of the URL must be a duration"),
    ("valkey://h", {"confirm_timeout": 0}, "confirm_timeout must be at least a millisecond, got 0"),
    ("valkey://h?db=" + "9" * 5000, {}, "db in the URL must be a whole number"),
    ("valkey://h/1/hunter2", {}, "its path is too long"),
    ("valkey+cluster://h/1", {}, "db must be 0 in a cluster"),
    ("valkey+sentinel://h", {}, "the service is missing"),
    ("valkey+cluster://a,:1", {}, "host number 2 is not valid"),
    ("valkey://hunter2 x", {}, "host number 1 is not valid"),
    ("valkey://" + "x" * 64, {}, "host number 1 is not valid"),
    ("valkey://ä" + "x" * 62, {}, "host number 1 is not valid"),
    ("valkey://h?password=a&b=c#hunter2", {}, "write / . # @ % in a password as %2F"),
    ("unix:///a%00b", {}, "the path of the socket"),
    ("valkey://h?password=\udcff", {}, "must be a string"),
    ("valkey://a,b", {}, "several hosts need"),
    ("valkey://h", {"ca": "x"}, "ca needs TLS"),
    ("valkeys://h", {"key": "x"}, "key needs cert"),
    ("valkey://h", {"sentinel_password": "hunter2"}, r"need a \+sentinel URL"),
    ("valkey://h", {"connect_timeout": 0}, "connect_timeout must be at least a millisecond, got 0"),
    ("valkey://h?socket_timeout=soon", {}, "socket_timeout in the query of the URL must be a duration"),
    ("valkey://h?socket_timeout=nan", {}, "socket_timeout in the query of the URL must be a duration"),
    ("valkeys://h?verify=1&ssl_cert_reqs=none", {}, "the URL contains verify twice"),
    ("valkey://:hunter2@h?password=hunter3", {}, "the URL contains password twice"),
    ("valkey://h/3?db=4", {}, "the URL contains db twice"),
    ("valkey+cluster://a,b:0", {}, "host number 2 is not valid"),
    ("valkey+cluster://" + "a," * 1_000, {}, "more than 1,000 hosts"),
    ("valkeys://h?verify=hunter2", {}, "verify in the query of the URL must be true or false"),
]

NO_SERVERS: list[str] = [
    "hunter2", "user:hunter2@h",
    "http://h", "h:6379", "valkey:h", "amqp://u:hunter2@h", "localhost", "://", "[x",
    "valkey+cluster+x://h", "valkey+://h", "valkey://u:hunter2@[::1",
    "valkey://u:hunter2@h:port", "valkey://u:hunter2@h:70000",
]  # fmt: skip

SHOWN: list[tuple[str, str]] = [
    ("valkey://user:hunter2@h:1/0", "valkey://***@h:1"),
    ("valkey://:hunter2@h/3", "valkey://***@h:6379/3"),
    ("valkey://hunter2@h", "valkey://***@h:6379"),
    ("valkey://h/0?password=hunter2", "valkey://h:6379"),
    ("valkey://user:hun@ter2@h", "valkey://***@h:6379"),
    ("valkey://h", "valkey://h:6379"),
    ("valkeys+cluster://u:hunter2@a:1,[::1]:2?ca=x", "valkeys+cluster://***@a:1,[::1]:2"),
    ("valkey+sentinel://u:hunter2@a:1,b/main", "valkey+sentinel://***@a:1,b:26379/main"),
    ("unix://u:hunter2@/run/v.sock?password=hunter2", "unix://***@/run/v.sock"),
]


def test_an_url_holds_where_the_servers_are(subtests: pytest.Subtests) -> None:
    for url, kind, tls, places, service, db in PLACES:
        with subtests.test(url=url):
            read = ConnectionSettings(url)
            assert [str(place) for place in read.places] == places
            assert (read.kind, read.tls, read.service, read.db) == (kind, tls, service, db)


def test_what_is_given_goes_before_the_url_and_an_url_before_the_defaults() -> None:
    url = "valkeys://u:p%40w@h?ca=a&cert=b&key=c&verify=no&connect_timeout=2&socket_timeout=3"
    read = ConnectionSettings(url)
    assert (read.user, read.password, read.ca, read.cert, read.key) == ("u", "p@w", "a", "b", "c")
    assert (read.verify, read.connect_timeout, read.socket_timeout) == (False, 2, 3)
    given = ConnectionSettings(url, user="other", ca="mine", socket_timeout=9)
    assert (given.user, given.password, given.ca, given.socket_timeout) == ("other", "p@w", "mine", 9)
    old = ConnectionSettings("rediss://h?ssl_ca_certs=x&ssl_cert_reqs=none&username=u")
    assert (old.ca, old.verify, old.user) == ("x", False, "u")


def test_confirm_says_what_a_write_must_have_reached(subtests: pytest.Subtests) -> None:
    for text, confirmation in CONFIRMATIONS:
        with subtests.test(text=text):
            assert ConnectionSettings("valkey://h", confirm=text).confirmation == confirmation
            if text:
                read = ConnectionSettings(f"valkey://h?confirm={text}&confirm_timeout=0.5")
                assert (read.confirm, read.confirm_timeout, read.confirmation) == (text, 0.5, confirmation)
                assert text in repr(ConnectionSettings("valkey://h", confirm=text))


def test_settings_stand_wherever_an_url_may() -> None:
    mine = ConnectionSettings("valkey://h", prefix="mine")
    assert ConnectionSettings.resolve(mine) is mine
    assert ConnectionSettings.resolve(mine, prefix="other").prefix == "other"
    queue = Queue("etl", mine)
    assert (queue._settings, queue._keys.base) == (mine, "mine:{etl}")
    cluster = ConnectionSettings("valkeys://u:p@h/1?ca=x", prefix="mine").as_cluster(Endpoint("::1", 7))
    assert (cluster.kind, cluster.places, cluster.user, cluster.password, cluster.ca, cluster.tls) == (
        "cluster", (Endpoint("::1", 7),), "u", "p", "x", True
    )  # fmt: skip


def test_a_bad_option_is_named(subtests: pytest.Subtests) -> None:
    for url, options, expected in BAD_OPTIONS:
        with subtests.test(url=url):
            with pytest.raises(ConfigurationError, match=expected) as refused:
                ConnectionSettings(url, **options)
            assert "hunter2" not in str(refused.value)
            assert refused.value.__cause__ is None


def test_an_empty_option_is_left_out_and_the_same_one_may_be_given_twice() -> None:
    url = "valkeys://u:p@h/3?ca=&user=&verify=&db=3&user=u&password=p&username=u&connect_timeout="
    assert ConnectionSettings(url).where == "valkeys://***@h:6379/3"
    assert (ConnectionSettings(url).user, ConnectionSettings(url).ca) == ("u", None)


def test_an_url_that_names_no_server_is_refused_without_its_password(subtests: pytest.Subtests) -> None:
    for url in NO_SERVERS:
        with subtests.test(url=url):
            with pytest.raises(ConfigurationError, match="name a server") as refused:
                ConnectionSettings.resolve(url)
            assert "hunter2" not in str(refused.value)


def test_the_environment_names_the_server_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_URL, "valkey://env")
    assert ConnectionSettings.resolve().url == "valkey://env"
    assert ConnectionSettings.resolve("valkey://own").url == "valkey://own"
    monkeypatch.setenv(ENV_URL, "")
    with pytest.raises(ConfigurationError, match="GLIDEMQ_URL"):
        ConnectionSettings.resolve()


def test_a_bad_prefix_is_refused(subtests: pytest.Subtests) -> None:
    for prefix in ("", "a{b", "a}"):
        with subtests.test(prefix=prefix), pytest.raises(ConfigurationError, match="prefix"):
            ConnectionSettings.resolve("valkey://h", prefix=prefix)


def test_a_shown_url_has_no_secret(subtests: pytest.Subtests) -> None:
    for url, shown in SHOWN:
        with subtests.test(url=url):
            assert ConnectionSettings(url).where == shown


# Pieces of a password as people paste it: nothing is quoted, and each piece is distinct.
SECRET = "S3cret"
PIECES = st.lists(
    st.sampled_from(
        [
            SECRET,
            *"/?#@%&=+;:[]{}\\ ,.'\"\t\n\x1b\u00e4\u2028",
            "%2",
            "%zz",
            "%40",
            "://",
            "db=",
            "ca=",
            "user=",
        ]
    ),
    min_size=1,
    max_size=8,
).map("".join)
SHAPES = st.sampled_from([
    "{s}://u:{p}@h:1/0", "{s}://{p}@h", "{s}://:{p}@h:1,h:2/main", "{s}://h?password={p}", "{s}://h?{p}=x",
    "{s}://h?{p}", "{s}://h/0?password=x&{p}#{p}", "{s}://h?user={p}&password={p}", "{s}://u:{p}@[::1]:7",
    "{s}://h?db={p}", "{s}://h?verify={p}", "{s}://h?connect_timeout={p}", "{s}:///v.sock?password={p}",
    "u:{p}@h", "http://u:{p}@h", "{s}//u:{p}@h",
])  # fmt: skip
SCHEME = st.sampled_from([scheme.removesuffix("://") for scheme in SCHEMES])


@settings(max_examples=200)
@given(SHAPES, SCHEME, PIECES)
@example("{s}://h?{p}=x", "valkey", f"pass word{SECRET}")
@example("{s}://h?password={p}", "valkey", f"a&{SECRET}#c")
@example("{s}://u:{p}@h:1/0", "valkey", f"a/{SECRET}")
@example("{s}://u:{p}@[::1]:7", "valkey", "]")
def test_nothing_of_a_password_is_shown_however_odd_the_url(shape: str, scheme: str, password: str) -> None:
    assert SECRET.lower() not in everything_shown(shape.format(s=scheme, p=password)).lower()


def everything_shown(url: str) -> str:
    try:
        read = ConnectionSettings(url)
    except ConfigurationError as exc:
        context = None if exc.__suppress_context__ else exc.__context__
        return f"{exc} {exc!r} {exc.__cause__!r} {context!r}"
    cluster = [] if read.db or read.kind == "sentinel" else [read.as_cluster(Endpoint("other", 1))]
    return f"{read!r} {read} {read.where} {read.node(read.places[0])} {cluster!r}"


def test_nothing_of_a_password_is_shown_by_what_cannot_connect() -> None:
    url = f"valkey://{SECRET}:{SECRET}@127.0.0.1:1?user={SECRET}"
    (finding,) = examine(url)
    with pytest.raises(ConnectionFailed) as refused, Queue("q", url) as queue:
        queue.is_paused()
    text = f"{finding} {refused.value} {refused.value.__cause__!r}"
    assert "valkey://***@127.0.0.1:1" in text
    assert SECRET not in text


def test_the_repr_of_settings_has_no_secret() -> None:
    read = ConnectionSettings.resolve("valkey://user:hunter2@h:1/0?password=hunter2")
    for text in (repr(read), str(read), f"{read}"):
        assert "hunter2" not in text
        assert "://***@h:1" in text
        assert "user='***'" in text
    watched = ConnectionSettings(
        "valkeys+sentinel://h/s?sentinel_password=hunter2", user="u", password="hunter2", ca="/ca.pem"
    )
    assert repr(watched) == (
        "ConnectionSettings(url='valkeys+sentinel://h:26379/s', prefix='glide', user='u', ca='/ca.pem', "
        "password='***', sentinel_password='***')"
    )


_WORDS = ["user", "password", "sentinel_user", "sentinel_password"]
_TEXTS: Any = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@settings(max_examples=200)
@given(
    place=st.sampled_from(
        [
            "valkey://h", "valkeys://[::1]:7/3", "valkey+cluster://a,b:1", "valkeys+cluster://a:1",
            "valkeys+sentinel://a,b:2/my%2Fmain/5", "unix:///tmp/x%20y.sock?db=4", "rediss://u:p%40@h/2",
        ]
    ),
    texts=st.dictionaries(st.sampled_from(_WORDS), _TEXTS),
    files=st.dictionaries(st.sampled_from(["ca", "cert"]), _TEXTS),
    waits=st.dictionaries(
        st.sampled_from(["connect_timeout", "socket_timeout", "confirm_timeout"]), st.floats(0.001, 1e6)
    ),
    verify=st.booleans(),
    confirm=st.sampled_from([None, "disk", "disk,replicas:2"]),
)  # fmt: skip
def test_the_whole_url_is_the_same_settings(  # noqa: PLR0917  all that there is
    place: str, texts: Any, files: Any, waits: Any, verify: object, confirm: str | None
) -> None:
    if "sentinel" not in place:
        texts = {name: text for name, text in texts.items() if not name.startswith("sentinel")}
    files = files if "valkeys" in place or "rediss" in place else {}
    original = ConnectionSettings(place, **texts, **files, **waits, verify=verify, confirm=confirm)  # type: ignore[arg-type]
    read = ConnectionSettings(original.whole_url)
    assert {one.name: getattr(read, one.name) for one in fields(read) if one.name != "url"} == {
        one.name: getattr(original, one.name) for one in fields(original) if one.name != "url"
    }
