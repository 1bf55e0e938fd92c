"""Names that cross processes: workflows, activities, queues, search attributes, ids."""

REPAIR_WORKFLOW = "NodeRepair"
BUDGET_WORKFLOW = "PoolBudget"
SCORING_WORKFLOW = "PoolScoring"
SWEEP_WORKFLOW = "FleetSweep"
SWEEP_WORKFLOW_ID = "fleet-sweep"

CONTROL_QUEUE = "control"

NODE_ATTRIBUTE = "SickbayNode"
POOL_ATTRIBUTE = "SickbayPool"
STAGE_ATTRIBUTE = "SickbayStage"
REASON_ATTRIBUTE = "SickbayReason"
SEARCH_ATTRIBUTES = (NODE_ATTRIBUTE, POOL_ATTRIBUTE, STAGE_ATTRIBUTE, REASON_ATTRIBUTE)


def node_queue(node: str) -> str:
    """The task queue of one node's own worker."""
    return f"node.{node}"


def site_queue(site: str) -> str:
    """The task queue of the gateway workers of one site's management network."""
    return f"site.{site}"


def repair_workflow_id(node: str) -> str:
    """Workflow id of a node's repair: one at a time per node."""
    return f"node-repair/{node}"


def budget_workflow_id(pool: str) -> str:
    """Workflow id of a pool's budget."""
    return f"pool-budget/{pool}"


def scoring_workflow_id(pool: str) -> str:
    """Workflow id of a pool's scoring."""
    return f"pool-scoring/{pool}"


def repair_id(node: str, first_run_id: str, generation: int = 0) -> str:
    """Stable name of one repair, kept over continue-as-new: node and first run id shortened.

    A repair that begins where another one ended, for what came meanwhile, is its next generation.
    """
    name = f"{node}.{first_run_id.replace('-', '')[:12]}"
    return f"{name}-{generation}" if generation else name


def same_execution(repair: str, node: str, first_run_id: str) -> bool:
    """Whether a repair's id belongs to the workflow execution of this first run id."""
    first = repair_id(node, first_run_id)
    return repair == first or repair.rpartition("-")[0] == first


def operation_id(repair: str, ordinal: int, verb: str, run: str = "") -> str:
    """The id under which a step happens at most once, the same on every retry and replay.

    `run` tells the run of a repair that goes on after its workflow was lost from the one before:
    a node's journal must not answer for an act that only the earlier run did.
    """
    return f"{repair}/{run}{'.' if run else ''}{ordinal:03d}-{verb}"
