"""Keeps one pool's scorer running: the activity does the work, this says that it must go on.

Ticks add no history. A worker that dies is noticed by its missing heartbeat and another one goes on
from the store.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from sickbay.contracts.names import SCORING_WORKFLOW
    from sickbay.contracts.scoring import SCORE_POOL, STOP_SCORING, ScoringEnded, ScoringInput

# An activity has to have an end; it begins anew long before the server would lose patience.
_RUN = timedelta(days=30)
_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=["UsageError"],
)
_SUPERSEDED_WAIT = timedelta(seconds=5)


@workflow.defn(name=SCORING_WORKFLOW)
class PoolScoring:
    """Runs `score_pool` for ever; the `stop` message ends it."""

    @workflow.init
    def __init__(self, inp: ScoringInput) -> None:
        """Remember nothing but whether to stop: all state is in the store."""
        self._inp = inp
        self._stopped = False

    @workflow.run
    async def run(self, inp: ScoringInput) -> None:
        """Run the activity until `stop`; when it ends by itself, continue as new."""
        scoring = workflow.start_activity(
            SCORE_POOL,
            inp,
            result_type=ScoringEnded,
            start_to_close_timeout=_RUN,
            heartbeat_timeout=timedelta(seconds=inp.heartbeat_timeout_s),
            retry_policy=_RETRY,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=f"score {inp.pool}",
        )
        await workflow.wait_condition(lambda: self._stopped or scoring.done())
        if self._stopped:
            scoring.cancel()
            return
        await scoring
        await workflow.sleep(_SUPERSEDED_WAIT)
        if not self._stopped:
            workflow.continue_as_new(inp)

    @workflow.signal(name=STOP_SCORING)
    def stop(self) -> None:
        """End the scoring of this pool."""
        self._stopped = True
