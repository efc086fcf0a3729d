"""What each mutation makes of a head: decided on a `View`, without effects of its own."""

from collections.abc import Mapping, Sequence

import msgspec

from outlast.driver import (
    PRIMARY,
    Entry,
    Fence,
    Index,
    PreconditionFailedError,
    StoredFence,
    Value,
    admit,
    next_claim,
)
from outlast.heads.caches import KnownIds
from outlast.heads.encoding import value_piece
from outlast.heads.layout import ASKED, Head, Layout, Log, Register
from outlast.heads.logs import (
    LogChange,
    find_entries,
    load_value,
    new_name,
    plan_append,
    plan_replace,
)
from outlast.heads.store import ObjectStore, key_of
from outlast.heads.swapping import Change, View


async def value_of(store: ObjectStore, key: str, head: Head, name: str) -> Value:
    """The register ``name`` with its fence, as `outlast.driver.Driver.read` returns it."""
    register = head.register(name)
    data = await load_value(store, key, register)
    age = 0.0 if data is None else max(0.0, await store.now() - register.written_at)
    return Value(data, register.version, age, head.plain_fence, head.index.parent)


async def claim_record(
    store: ObjectStore,
    view: View,
    claim_id: str,
    *,
    at_least: int | None,
    if_epoch: int | None,
    parent: str | None,
) -> Change[Value]:
    """`outlast.driver.Driver.claim`."""
    head = view.head
    key = key_of(head.scope)
    stored = view.stored
    is_unmarked = False
    if view.is_new and stored is not None and stored.epoch and stored.claim_id == claim_id:
        is_asked = head.fence.op == ASKED
        if not is_asked and stored.epoch <= view.floor.epoch and stored.epoch != at_least:
            # It made the record and was told no epoch, or the record would be marked by now. An
            # earlier life may have had this one: it claims anew.
            stored = stored._replace(claim_id="")
            if_epoch = None  # It was compared when the record was made.
        else:
            is_unmarked = view.is_raised or not (is_asked or stored.epoch > view.floor.ceiling)
    fence = next_claim(stored, claim_id, at_least, view.floor.ceiling, if_epoch)
    is_held = fence == view.stored
    if is_held:
        fence = head.fence
    elif at_least is not None:
        fence = fence._replace(op=ASKED)
    index = head.index
    if parent is not None and head.register(PRIMARY[head.kind]).is_empty:
        index = index._replace(parent=parent)
    if is_held and index == head.index and not is_unmarked:
        return Change(await value_of(store, key, head, PRIMARY[head.kind]))
    head = msgspec.structs.replace(
        head,
        version=head.version + 1,
        changed_at=head.changed_at if is_held else await store.now(),
        # The next claim that does not ask for its epoch compares it with the floor.
        is_new=head.is_new or (view.is_new and head.is_empty and fence.op == ASKED),
        fence=fence,
        index=index,
    )
    return Change(await value_of(store, key, head, PRIMARY[head.kind]), head)


async def write_register(
    store: ObjectStore,
    view: View,
    layout: Layout,
    name: str,
    data: bytes | None,
    *,
    fence: Fence | None,
    index: Index | None,
    if_version: int | None,
) -> Change[int | None]:
    """`outlast.driver.Driver.write`; ``None``: another version, and a head for the next try."""
    old = view.head.register(name)
    if not admit(view.stored, fence):
        return Change(old.version)
    if if_version is not None and old.version != if_version:
        raised = raise_above_floor(view).head
        if raised is None:
            raise PreconditionFailedError(f"the version is {old.version}, not {if_version}")
        # Readers do not look at the floor: without this they would name the old version for ever.
        return Change(None, raised)
    if view.stored is None and data is None:
        return Change(0)
    head = await _accept(store, view.head, fence)
    change: Change[int | None] = Change(head.version)
    new = Register(head.version, head.changed_at, data)
    if data is not None and len(data) > layout.inline_bytes(head.kind):
        piece = value_piece(new_name(), data)
        change.pieces[piece.ref.name] = piece.data
        new = Register(head.version, head.changed_at, None, piece.ref)
    if old.ref is not None:
        change.dropped.append(old.ref)
    if name == PRIMARY[head.kind]:
        head = msgspec.structs.replace(head, index=index or Index(head.index.parent))
    change.head = msgspec.structs.replace(head, registers={**head.registers, name: new})
    return change


async def append_entries(
    store: ObjectStore,
    view: View,
    layout: Layout,
    name: str,
    entries: Sequence[Entry],
    known: KnownIds,
    *,
    fence: Fence | None,
    present: Sequence[str],
) -> tuple[Change[list[Entry]], LogChange | None]:
    """`outlast.driver.Driver.append`; with what the log becomes, if it changes.

    Args:
        store: Where the pieces are.
        view: What to decide on.
        layout: How logs are divided.
        name: Of the log.
        entries: What to append.
        known: Brought up to the log's pieces here.
        fence: Of the mutation.
        present: Ids that must be in the log.
    """
    if not admit(view.stored, fence):
        return Change([]), None
    log = view.head.log(name)
    key = key_of(view.head.scope)
    await known.catch_up(store, key, log.refs)
    leaf_of = known.leaf_of
    tail = {entry.id for entry in log.tail}
    for entry_id in present:
        if entry_id not in tail and entry_id not in leaf_of:
            raise PreconditionFailedError(f"{entry_id!r} is not in the log any more")
    found = [entry.id for entry in entries if entry.id in tail or entry.id in leaf_of]
    if found:
        return Change(await find_entries(store, key, log, leaf_of, found)), None
    if not entries and fence is None:
        return Change([]), None
    planned = await plan_append(store, key, log, entries, layout)
    head = _with_log(await _accept(store, view.head, fence), name, planned.log)
    return Change([], head, planned.pieces, planned.dropped), planned


async def replace_entries(
    store: ObjectStore,
    view: View,
    layout: Layout,
    name: str,
    entries: Sequence[Entry],
    *,
    fence: Fence | None,
) -> tuple[Change[None], LogChange | None]:
    """`outlast.driver.Driver.replace`; with what the log becomes, if it changes."""
    if not admit(view.stored, fence) or (view.stored is None and not entries):
        return Change(None), None
    planned = plan_replace(view.head.log(name), entries, layout)
    head = _with_log(await _accept(store, view.head, fence), name, planned.log)
    return Change(None, head, planned.pieces, planned.dropped), planned


async def remove_all(store: ObjectStore, view: View, *, fence: Fence | None) -> Change[None]:
    """`outlast.driver.Driver.remove`."""
    if not admit(view.stored, fence) or view.stored is None:
        return Change(None)
    head = await _accept(store, view.head, fence)
    registers: Mapping[str, Register] = head.registers
    dropped = [register.ref for register in registers.values() if register.ref is not None]
    dropped += [ref for log in head.logs.values() for ref in log.refs]
    head = msgspec.structs.replace(
        head,
        index=Index(head.index.parent),
        registers={name: Register(head.version, head.changed_at) for name in registers},
        logs={},
    )
    return Change(None, head, dropped=dropped)


def raise_above_floor(view: View) -> Change[None]:
    """Let a record start above the floor that was raised while an unclaimed mutation made it."""
    if view.stored is None or view.stored.epoch or not view.is_new:
        return Change(None)
    return Change(None, msgspec.structs.replace(view.head, version=view.head.version + 1))


async def _accept(store: ObjectStore, head: Head, fence: Fence | None) -> Head:
    """The head with the fence of an accepted mutation, which ends its being new."""
    return msgspec.structs.replace(
        head,
        version=head.version + 1,
        changed_at=await store.now(),
        is_new=head.is_new and fence is None,
        fence=head.fence if fence is None else StoredFence(*fence),
    )


def _with_log(head: Head, name: str, log: Log) -> Head:
    return msgspec.structs.replace(head, logs={**head.logs, name: log})


__all__ = [
    "append_entries",
    "claim_record",
    "raise_above_floor",
    "remove_all",
    "replace_entries",
    "value_of",
    "write_register",
]
