"""``glidemq flow retry`` and ``glidemq flow restart``."""

from __future__ import annotations

from glidemq_orchestrate.cli.flow.follow import show_or_follow
from glidemq_orchestrate.cli.flow.options import FlowIdArgument, Request, Timeout, Wait, Watch
from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, reports_errors
from glidemq_orchestrate.clients.producer import FlowProducer
from glidemq_orchestrate.keys import DEFAULT_PREFIX


@reports_errors
def retry(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again the nodes of a failed or cancelled flow that did not complete; the others keep results.

    With a mended flow file: glidemq flow submit FILE --id FLOW_ID --retry-failed.
    """
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.retry_failed()
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)


@reports_errors
def restart(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Wait = True,
    watch: Watch = True,
    timeout: Timeout = None,
    request: Request = "",
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run all of a flow again, as its next generation; a running flow is cancelled first."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.restart(request=request)
        show_or_follow(flow, wait=wait, watch=watch, timeout=timeout, as_json=as_json)
