"""Steps that run something by Pipes, and what became of them."""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
from dagster_glidemq import PipesGlideMQClient

Body = Callable[[Any, PipesGlideMQClient], Any]


def step_of(body: Body, *keys: str, **options: Any) -> dg.AssetsDefinition:
    """A step with these assets."""
    specs = options.pop("specs", None) or [dg.AssetSpec(key, skippable=len(keys) > 1) for key in keys]

    @dg.multi_asset(specs=specs, name="step", can_subset=len(specs) > 1, **options)
    def step(context: dg.AssetExecutionContext, pipes: PipesGlideMQClient) -> Iterator[Any]:
        yield from body(context, pipes)

    return step


def run(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, body: Body, *keys: str, **options: Any
) -> dg.ExecuteInProcessResult:
    step = step_of(body, *keys or ("cleaned",), **options)
    return dg.materialize([step], resources={"pipes": pipes}, instance=instance, raise_on_error=False)


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each materialization, plain, by asset."""
    events = result.get_asset_materialization_events()
    found = {
        event.asset_key.to_user_string(): {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in events
        if event.asset_key is not None
    }
    assert len(found) == len(events)
    return found


def clean(context: Any, pipes: PipesGlideMQClient, **more: Any) -> Any:
    return pipes.run(context=context, job="clean", queue="etl", **more).get_results()
