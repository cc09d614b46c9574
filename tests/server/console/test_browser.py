"""The page of the console in a real browser."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobTemplate,
    NewJob,
    Ordering,
    Queue,
    Schedule,
)
from glidemq_orchestrate.clients.schedules import Schedules
from tests.server.console.conftest import SECRET, spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunWorker

SERIOUS = {"serious", "critical"}


VIEWS = (
    "#/flows",
    "#/flows/night%2F1",
    "#/flows/night%2F1?view=timeline",
    "#/flows/night%2F1?view=nodes",
    "#/flows/night%2F1?view=errors",
    "#/flows/night%2F1/nodes/clean%5B3%5D",
    "#/queues",
    "#/queues/etl",
    "#/queues/etl?view=jobs",
    "#/queues/etl?view=keys",
    "#/queues/etl?view=tags",
    "#/queues/etl?view=tracked",
    "#/queues/etl?view=statistics",
    "#/queues/etl/jobs/{job}",
    "#/workers",
    "#/schedules",
    "#/schedules/etl/nightly",
)


def views(queue: Queue, url: str) -> list[str]:
    """Every view, with something in each."""
    queue.track(queue.add("other", tags=["monthly"], delay=60))
    queue.add("other", ordering=Ordering("customer-7"), delay=60)
    with Schedules("etl", queue._settings) as schedules:
        schedules.upsert("nightly", Schedule(cron="0 3 * * *"), JobTemplate("other"))
    (job,) = queue.tagged("monthly")
    return [view.replace("{job}", job.id) for view in VIEWS]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_every_page_is_accessible(
    failed: Flow, queue: Queue, url: str, look: Callable[..., Page], scheme: str
) -> None:
    page = look("#/flows", with_axe=True, color_scheme=scheme)
    for view in views(queue, url):
        page.goto(f"{page.url.partition('#')[0]}{view}")
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_load_state("networkidle") if "night" not in view else page.wait_for_timeout(300)
        found = Axe().run(page).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in SERIOUS]
        assert serious == [], (view, scheme)
        assert SECRET not in page.content(), view


def test_narrow_screens_scroll_in_one_direction(
    failed: Flow, queue: Queue, url: str, look: Callable[..., Page]
) -> None:
    page = look("#/flows", viewport={"width": 380, "height": 800})
    for view in views(queue, url):
        page.goto(f"{page.url.partition('#')[0]}{view}")
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, view


def test_what_is_wrong_is_seen_at_once(failed: Flow, look: Callable[..., Page]) -> None:
    page = look("#/flows/night%2F1")
    expect(page.locator("h1")).to_contain_text("failed")
    main = page.locator("main")
    expect(main).to_contain_text("ValueError: no rows in postgresql://me:***@db/x")
    expect(main).to_contain_text("clean[0..11]")
    page.get_by_role("link", name="clean[3]").first.click()
    expect(page.locator("h1")).to_contain_text("clean[3]")


def test_a_failed_flow_is_retried_by_clicking(
    flows: FlowProducer, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    mended = threading.Event()

    def clean(ctx: Context) -> int:
        if not mended.is_set() and ctx.node == "clean[3]":
            raise ValueError("no rows")
        return 1

    flow = flows.submit(spec(), flow_id="f")
    run_worker(["etl"], {"extract": lambda _: 1, "clean": clean, "report": lambda _: 1})
    flow.wait(timeout=30)
    page = look("#/flows/f")
    mended.set()
    page.get_by_role("button", name="Retry failed nodes").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Runs 2 nodes again")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert flow.status().state == "failed", "Escape changes nothing"
    page.get_by_role("button", name="Retry failed nodes").click()
    dialog.get_by_role("button", name=re.compile("Retry")).click()
    expect(page.locator("h1")).to_contain_text("completed")
    assert flow.status().state == "completed"


def test_changes_are_seen_as_they_happen(
    flows: FlowProducer, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    go_on = threading.Event()
    flows.submit(spec(), flow_id="f")
    page = look("#/flows/f")
    expect(page.locator("h1")).to_contain_text("running")

    def clean(ctx: Context) -> None:
        if ctx.node == "clean[5]":
            assert go_on.wait(60)

    run_worker(["etl"], {"extract": lambda _: 1, "clean": clean, "report": lambda _: 1})
    expect(page.locator("main")).to_contain_text("12 completed")
    go_on.set()
    expect(page.locator("h1")).to_contain_text("completed")


def test_a_flow_of_10_000_nodes_and_an_array_of_a_million_are_some_boxes(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    parts = [f"part-{at}" for at in range(10_000)]
    nodes = [FlowNode("a"), *(FlowNode(name, job="part", after=["a"]) for name in parts)]
    array = ArrayNode("score", over=range(1_000_000), after=["a"])
    flows.submit(
        FlowSpec("n", [*nodes, array, FlowNode("end", after=[*parts, "score"])], queue="nobody"), flow_id="f"
    )
    page = look("#/flows/f")
    expect(page.locator("main")).to_contain_text("4 groups of nodes")
    page.get_by_role("link", name=re.compile(r"part-0\.\.9999")).first.click()
    expect(page.locator("main")).to_contain_text("part-17")
    page.get_by_label(re.compile("name", re.IGNORECASE)).last.fill("part-999*")
    expect(page.locator("main")).to_contain_text("part-9990")


def test_payloads_are_text(flows: FlowProducer, look: Callable[..., Page]) -> None:
    name = "<img src=x onerror=window.bad=1>"
    data: dict[str, Any] = {"html": "<script>window.bad=1</script>", name: 1}
    flows.submit(FlowSpec(name, [FlowNode(name, data=data, queue="nobody")], labels={"a": name}), flow_id="f")
    page = look("#/flows")
    expect(page.locator("main")).to_contain_text(name)
    page.goto(f"{page.url.partition('#')[0]}#/flows/f")
    expect(page.locator("h1")).to_contain_text(name)
    page.goto(
        f"{page.url.partition('#')[0]}#/flows/f/nodes/{'%3Cimg%20src%3Dx%20onerror%3Dwindow.bad%3D1%3E'}"
    )
    expect(page.locator("main")).to_contain_text("<script>window.bad=1</script>")
    assert page.evaluate("window.bad") is None


def test_an_unknown_flow_and_a_wrong_token_say_so(look: Callable[..., Page]) -> None:
    page = look("#/flows/no-such-flow")
    expect(page.locator("main")).to_contain_text("no flow no-such-flow")
    page = look("#/flows", token="right")
    field = page.get_by_label(re.compile("token", re.IGNORECASE))
    field.fill("wrong")
    field.press("Enter")
    expect(page.locator("body")).to_contain_text("not valid")
    field.fill("right")
    field.press("Enter")
    expect(page.locator("h1")).to_contain_text("Flows")
    expect(field).to_be_hidden()


def test_a_node_named_by_dots_is_cancelled_alone(flows: FlowProducer, look: Callable[..., Page]) -> None:
    flow = flows.submit(FlowSpec("n", [FlowNode("..", queue="etl"), FlowNode("b", queue="etl")]), flow_id="f")
    page = look("#/flows/f/nodes/..")
    page.get_by_role("button", name="Cancel this node").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel this node").click()
    expect(page.locator("h1")).to_contain_text("failed")
    assert (flow.node("b").state, flow.status().state) == ("waiting", "running")


def test_a_slash_focuses_the_search(failed: Flow, look: Callable[..., Page]) -> None:
    page = look("#/flows")
    expect(page.locator("main")).to_contain_text("nightly")
    page.keyboard.press("/")
    page.keyboard.type("nothing like it")
    expect(page.locator("main")).not_to_contain_text("nightly")
    assert "search=nothing" in page.url


def test_a_read_only_console_offers_no_changes(failed: Flow, look: Callable[..., Page]) -> None:
    page = look("#/flows/night%2F1", read_only=True)
    expect(page.locator("h1")).to_contain_text("failed")
    expect(page.get_by_role("button", name=re.compile("Retry|Restart|Cancel"))).to_have_count(0)


def test_failed_elements_of_an_array_are_listed_and_run_again(
    flows: FlowProducer, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    broken = {7, 900}

    def score(ctx: Context) -> int:
        if ctx.data in broken:
            raise ValueError(f"no model for {ctx.data}")
        return 1

    flow = flows.submit(FlowSpec("n", [ArrayNode("score", over=range(1_000), queue="etl")]), flow_id="f")
    run_worker(["etl"], {"score": score})
    flow.wait(timeout=30)
    page = look("#/flows/f/nodes/score")
    table = page.get_by_role("region", name="Failed elements")
    expect(table).to_contain_text("ValueError: no model for 900")
    table.get_by_role("link", name="[7]").click()
    expect(page.locator("h1")).to_contain_text("score[7]")
    expect(page.locator("main")).to_contain_text("no model for 7")
    expect(page.locator("main")).to_contain_text("Element 7 of the 1,000 of score")
    broken.clear()
    page.get_by_role("button", name="Run this element again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The other elements of score keep their ends")
    dialog.get_by_role("button", name="Run this element again").click()
    expect(page.locator("h1")).to_contain_text("completed")
    assert [one.index for one in flow.array("score").failed()] == [900]


def test_all_failed_elements_of_an_array_can_be_listed(
    flows: FlowProducer, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    def score(ctx: Context) -> None:
        raise ValueError(f"no model for {ctx.data}")

    flow = flows.submit(FlowSpec("n", [ArrayNode("score", over=range(50), queue="etl")]), flow_id="f")
    run_worker(["etl"], {"score": score})
    flow.wait(timeout=30)
    page = look("#/flows/f/nodes/score")
    rows = page.get_by_role("region", name="Failed elements").locator("tbody tr")
    expect(rows).to_have_count(20)
    page.get_by_role("button", name="Show all 50").click()
    expect(rows).to_have_count(50)
    expect(rows.last).to_contain_text("ValueError: no model for 49")
    expect(page.get_by_role("button", name="Show all 50")).to_have_count(0)


@pytest.mark.parametrize("view", ["", "/nodes/score"])
def test_elements_of_an_array_are_seen_as_they_end_without_asking(
    flows: FlowProducer, run_worker: RunWorker, look: Callable[..., Page], view: str
) -> None:
    asked: list[str] = []
    go_on = threading.Event()

    def score(ctx: Context) -> None:
        if ctx.data == 700:
            assert go_on.wait(60)

    flows.submit(FlowSpec("n", [ArrayNode("score", over=range(1_000), queue="etl")]), flow_id="f")
    page = look(f"#/flows/f{view}")
    expect(page.locator("main")).to_contain_text("1,000 elements" if view else "1 group of nodes")
    page.wait_for_timeout(1_000)
    page.on("request", lambda request: asked.append(request.url))
    run_worker(["etl"], {"score": score}, concurrency=1)
    expect(
        page.locator("main").get_by_role("img", name=re.compile("[1-9][0-9]* completed")).first
    ).to_be_visible()
    assert [url for url in asked if "/f" in url and "/live" not in url and "/logs" not in url] == []
    go_on.set()
    expect(page.locator("h1")).to_contain_text("completed")


def test_a_node_runs_again_by_clicking(failed: Flow, look: Callable[..., Page]) -> None:
    page = look("#/flows/night%2F1/nodes/clean%5B4%5D")
    page.get_by_role("button", name="Run this node again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Runs clean[4] again, and 1 node after it that began or ended: report.")
    dialog.get_by_role("button", name="Run this node again").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("status").filter(has_text="clean[4] runs again")).to_have_count(1)


def test_a_flow_is_asked_for_once_and_before_the_script_is_there(
    flows: FlowProducer, look: Callable[..., Page]
) -> None:
    flows.submit(FlowSpec("n", [FlowNode("a", queue="nobody")]), flow_id="f")
    page = look("#/flows")
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.url.rpartition("/static/")[2].rpartition("/api/")[2])
    )
    page.goto(f"{page.url.partition('#')[0]}?x#/flows/f")
    expect(page.locator("main")).to_contain_text("1 group of nodes")
    page.wait_for_timeout(1_500)
    assert (asked.count("flows/f"), asked.count("about")) == (1, 1)
    page.route("**/static/app.js", lambda route: None)
    with page.expect_request("**/api/flows/f"):
        page.goto(f"{page.url.partition('?')[0]}?y#/flows/f", wait_until="commit")


def test_a_flow_is_there_before_its_graph(flows: FlowProducer, look: Callable[..., Page]) -> None:
    flows.submit(FlowSpec("n", [FlowNode("a", queue="nobody")], labels={"dag": "d"}), flow_id="f")
    page = look("#/flows")
    page.route("**/api/flows/f", lambda route: None)
    page.goto(f"{page.url.partition('#')[0]}#/flows/f")
    expect(page.locator("h1")).to_contain_text("running")
    expect(page.locator("main")).to_contain_text("1 not ended")
    expect(page.locator("main")).to_contain_text("Loading the graph")


def test_a_queue_tells_of_keys_tags_and_tracked_jobs(queue: Queue, look: Callable[..., Page]) -> None:
    queue.add_many([NewJob("clean", tags=["monthly"]), NewJob("clean", ordering=Ordering("customer-7"))])
    queue.rate_limit_group("customer-7", 600)
    page = look("#/queues/etl")
    page.get_by_role("link", name="Ordering keys", exact=True).click()
    expect(page.get_by_role("region", name="Ordering keys")).to_contain_text("paused, goes on in")
    page.get_by_role("link", name="Tags", exact=True).click()
    page.get_by_role("link", name="monthly").click()
    jobs = page.get_by_role("region", name="Jobs")
    expect(jobs.get_by_role("row")).to_have_count(2)
    jobs.get_by_role("link").first.click()
    page.get_by_role("button", name="Track this job").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("records its history from now on")
    dialog.get_by_role("button", name="Track this job").click()
    expect(page.get_by_role("region", name="History")).to_contain_text("tracked")
    assert [one.kind for one in queue.tracked()] == ["job"]


def test_a_group_of_failures_is_retried_by_clicking(
    queue: Queue, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    mended = threading.Event()

    def clean(_: Context) -> int:
        if not mended.is_set():
            raise ValueError("no rows")
        return 1

    run_worker(["etl"], {"clean": clean})
    queue.add_many([NewJob("clean") for _ in range(3)])
    page = look("#/queues/etl")
    expect(page.locator("main")).to_contain_text("ValueError: no rows")
    expect(page.locator("main")).to_contain_text("3 failed")
    mended.set()
    page.get_by_role("button", name="Retry this group").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Runs 3 failed jobs of the group ValueError again.")
    dialog.get_by_role("button", name="Retry this group").click()
    expect(page.locator(".told")).to_have_text("Retry this group: 3 jobs.")
    expect(page.locator("main")).to_contain_text("3 completed")


def test_a_job_leads_to_the_schedule_that_added_it(
    queue: Queue, url: str, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    with Schedules("etl", url) as schedules:
        schedules.upsert("<b>night/ly</b>", Schedule(every=0.1, limit=1), JobTemplate("clean"))
    run_worker(["etl"], {"clean": lambda _: 1})
    page = look("#/schedules/etl/%3Cb%3Enight%2Fly%3C%2Fb%3E")
    page.locator("tbody a").first.click()
    page.get_by_role("link", name="<b>night/ly</b>", exact=True).click()
    expect(page.locator("h1")).to_contain_text("<b>night/ly</b>")
    expect(page.locator(".facts")).to_contain_text("1 of 1")


def test_a_schedule_is_run_now_by_clicking(queue: Queue, url: str, look: Callable[..., Page]) -> None:
    with Schedules("etl", url) as schedules:
        schedules.upsert("night / 1", Schedule(cron="0 3 * * *"), JobTemplate("clean", {"k": 1}))
        page = look("#/schedules")
        page.get_by_role("link", name="night / 1").click()
        expect(page.locator("ol.times li")).to_have_count(10)
        page.get_by_role("button", name="Run now").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Adds one job clean to the queue etl now")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        assert queue.get_jobs("waiting") == []
        page.get_by_role("button", name="Run now").click()
        dialog.get_by_role("button", name="Run now").click()
        expect(dialog).to_be_hidden()
        (job,) = queue.get_jobs("waiting")
        assert (job.name, job.data) == ("clean", {"k": 1})
        expect(page.get_by_role("status").filter(has_text=f"Job {job.id} was added")).to_have_count(1)
        page.get_by_role("button", name="Pause").click()
        expect(dialog).to_contain_text("adds no more jobs until it is resumed")
        dialog.get_by_role("button", name="Pause").click()
        expect(page.locator("main")).to_contain_text("paused")
        assert schedules.get("night / 1").paused
        page.get_by_role("button", name="Resume").click()
        dialog.get_by_role("button", name="Resume").click()
        expect(page.locator("ol.times li")).to_have_count(10)
        assert not schedules.get("night / 1").paused


def test_a_running_job_outside_flows_is_opened_from_its_worker(
    queue: Queue, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    go_on = threading.Event()
    run_worker(["etl"], {"alone": lambda _: go_on.wait(60)})
    job_id = queue.add("alone")
    page = look("#/workers")
    page.get_by_role("link", name="alone", exact=True).click()
    expect(page.locator("h1")).to_contain_text(job_id)
    go_on.set()


def test_a_node_says_that_its_history_may_have_gaps(failed: Flow, look: Callable[..., Page]) -> None:
    page = look("#/flows/night%2F1/nodes/clean%5B3%5D")
    expect(page.get_by_text("Events may be missing: a node records its history if")).to_be_visible()


def test_the_table_of_workers_fits_a_window_of_1100_pixels(
    queue: Queue, run_worker: RunWorker, look: Callable[..., Page]
) -> None:
    run_worker(["etl"], {name: lambda _: 1 for name in ("clean", "element", "extract", "report", "total")})
    page = look("#/workers", viewport={"width": 1100, "height": 900})
    expect(page.locator("tbody")).to_contain_text("5 handlers")
    assert page.get_by_role("region", name="Workers").evaluate("box => box.scrollWidth <= box.clientWidth")
