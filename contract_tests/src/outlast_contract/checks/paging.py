"""Pages of lists that are filtered, too (L2, L4)."""

from typing import Any

import outlast
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import expect_equal

_FILTERS: dict[str, dict[str, Any]] = {
    "status": {"status": outlast.TaskStatus.RUNNING},
    "parent_id": {"parent_id": "p"},
    "both": {"status": outlast.TaskStatus.RUNNING, "parent_id": "p"},
}


@check_each(_FILTERS, "L4", "L2", "L3")
async def pages_of_a_filtered_list_make_up_the_list(
    context: Context, filters: dict[str, Any]
) -> None:
    """after= and limit= go on within the tasks that match, in pages of any size."""
    tasks = (await context.open()).persistence
    for number in range(24):
        state = outlast.TaskState(
            id=f"task {number:02}",
            parent_id="p" if number % 3 else "q",
            status=(outlast.TaskStatus.RUNNING if number % 2 else outlast.TaskStatus.PAUSED),
        )
        await tasks.save_task_state(state.id, state)
    listed = [state.id for state in await tasks.list_task_states(**filters)]
    for place, name in enumerate(listed):
        rest = [state.id for state in await tasks.list_task_states(after=name, **filters)]
        expect_equal(rest, listed[place + 1 :], f"{filters} after {name!r}")
    for size in (1, 5, len(listed)):
        pages: list[str] = []
        for _ in range(len(listed) + 2):
            after = pages[-1] if pages else None
            page = await tasks.list_task_states(after=after, limit=size, **filters)
            pages += [state.id for state in page]
            if len(page) < size:
                break
        expect_equal(pages, listed, f"pages of {size} of {filters}")


__all__: list[str] = []
