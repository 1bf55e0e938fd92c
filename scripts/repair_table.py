"""Writes the table of stages into docs/explanation/repair-loop.md from the table the loop uses."""

from pathlib import Path

from sickbay.domain.repair import TABLE, Ending, Stage

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "repair-loop.md"
START, END = "<!-- table:next_stage -->", "<!-- /table:next_stage -->"


def rows() -> list[str]:
    """One row per stage and outcome."""
    lines = ["| stage | outcome | next |", "|---|---|---|"]
    for (stage, outcome), there in TABLE.items():
        named = f"`{there}`" if isinstance(there, Stage | Ending) else str(there)
        where = f"ends: {named}" if isinstance(there, Ending) else named
        lines.append(f"| `{stage}` | `{outcome}` | {where} |")
    return lines


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(START)
    _, tail = rest.split(END)
    table = "\n".join(rows())
    PAGE.write_text(f"{head}{START}\n\n{table}\n\n{END}{tail}", encoding="utf-8")
