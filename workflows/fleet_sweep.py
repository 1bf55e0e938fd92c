"""The fleet's sweep: when a control worker starts and every hour, however many of them there are.

One workflow id makes it one sweep: two control workers ask the same one, and a sweep that runs is
not begun again beside itself.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from activities.sweep import SweepActivities
    from sickbay.contracts import names
    from sickbay.contracts.sweep import SweepInput
    from workflows.options import NON_RETRYABLE

# A comparison asks every node's scheduler row; thousands of them take minutes, not hours.
_LONGEST = timedelta(minutes=30)
_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(minutes=1),
    non_retryable_error_types=list(NON_RETRYABLE),
)


@workflow.defn(name=names.SWEEP_WORKFLOW)
class FleetSweep:
    """Compares, mends and removes what is old, for ever; the `stop` message ends it."""

    @workflow.init
    def __init__(self, inp: SweepInput) -> None:
        self._inp = inp
        self._due = True
        self._stopped = False

    @workflow.run
    async def run(self, inp: SweepInput) -> None:
        """Sweep when asked and when it is time."""
        del inp
        while not self._stopped:
            if self._due:
                self._due = False
                await self._sweep()
            await self._wait()
            if workflow.info().is_continue_as_new_suggested() and not self._stopped:
                workflow.continue_as_new(self._inp)

    async def _sweep(self) -> None:
        heartbeat = timedelta(minutes=1)
        await workflow.execute_activity_method(
            SweepActivities.recover_holds,
            start_to_close_timeout=_LONGEST,
            heartbeat_timeout=heartbeat,
            retry_policy=_RETRY,
        )
        await workflow.execute_activity_method(
            SweepActivities.prune_records,
            self._inp.retention,
            start_to_close_timeout=_LONGEST,
            heartbeat_timeout=heartbeat,
            retry_policy=_RETRY,
        )

    async def _wait(self) -> None:
        try:
            await workflow.wait_condition(
                lambda: self._due or self._stopped, timeout=timedelta(seconds=self._inp.every_s)
            )
        except TimeoutError:
            self._due = True

    @workflow.signal(name="sweep_now")
    def sweep_now(self, inp: SweepInput) -> None:
        """Sweep once more, from now on with these settings."""
        self._inp = replace(inp)
        self._due = True

    @workflow.signal(name="stop")
    def stop(self) -> None:
        """End the sweeps of this fleet."""
        self._stopped = True
