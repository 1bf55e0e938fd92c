"""Tickets and pages: what people are asked, once."""

from temporalio import activity

from activities.effects import retry_transient, withheld_by
from sickbay.contracts.budget import BudgetPage
from sickbay.contracts.steps import Action, Effect, PageDraft, TicketAnswer, TicketRequest
from sickbay.domain.blame import common_of_counts, counted
from sickbay.ports import Inventory, Pager, Safety, Tickets


class PeopleActivities:
    """Asks people through the Tickets and Pager ports."""

    def __init__(
        self, tickets: Tickets, *, pager: Pager, inventory: Inventory, safety: Safety
    ) -> None:
        self._tickets = tickets
        self._pager = pager
        self._inventory = inventory
        self._safety = safety

    @activity.defn(name="open_ticket")
    async def open_ticket(self, request: TicketRequest) -> TicketAnswer:
        """The id of the one ticket of this node, part and category."""
        step = request.step
        permission = await self._safety.permission(pool=step.pool, action=Action.TICKET)
        if held := withheld_by(permission, step=step):
            detail = request.draft.title
            await self._safety.would_have(
                node=step.node, pool=step.pool, action=Action.TICKET, detail=detail, why=str(held)
            )
            return TicketAnswer(ticket=None, withheld=held)
        return TicketAnswer(ticket=await self._tickets.open(request.draft))

    @activity.defn(name="comment_ticket")
    async def comment_ticket(self, ticket: str, text: str) -> Effect:
        """Add a line to a ticket."""
        return retry_transient(await self._tickets.comment(ticket, text=text))

    @activity.defn(name="close_ticket")
    async def close_ticket(self, ticket: str, text: str) -> Effect:
        """Close a ticket with a last line."""
        return retry_transient(await self._tickets.close(ticket, text=text))

    @activity.defn(name="page")
    async def page(self, draft: PageDraft) -> Effect:
        """Deliver a page once per key."""
        return retry_transient(await self._pager.page(draft))

    @activity.defn(name="page_budget")
    async def page_budget(self, page: BudgetPage) -> Effect:
        """Page that a budget or cap is spent, with the factor its nodes have in common."""
        nodes = await self._inventory.nodes(pool=page.pool)
        population = counted(
            {"rack": n.rack, "group": n.group, "node_class": n.node_class} for n in nodes
        )
        factor = common_of_counts(
            page.carriers, failing=page.failing, carried=population, nodes=len(nodes)
        )
        cause = "no common factor stands out"
        if factor is not None:
            said = factor.sentence(failing=page.failing, nodes=len(nodes))
            cause = f"likely common factor: {said}"
        symptoms = ", ".join(f"{n} x {r}" for r, n in page.carriers.get("reason", {}).items())
        if symptoms:
            cause = f"{cause}. Symptoms: {symptoms}"
        detail = (
            f"{page.text}. {cause}. Lend closures with "
            f"`sickbay budget {page.pool} --grant N --by NAME --reason TEXT`, "
            f"stop them with `--freeze`."
        )
        summary = f"budget of {page.pool} needs a human"
        draft = PageDraft(key=page.key, pool=page.pool, summary=summary, detail=detail)
        return retry_transient(await self._pager.page(draft))
