"""Users who may not do everything: told on opening, so that no script fails in its midst."""

import ast
import re
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis_proxy import Proxy
from redis_support import Open, claim_id, client_of

import outlast
import outlast_redis
from outlast.driver import Entry, Fence, Index, Scope
from outlast.errors import ConfigurationError
from outlast_contract.servers import Server
from outlast_contract.stores.redis import keys_of
from outlast_redis import RedisDriver, _scripts
from outlast_redis._scripts import Script, commands_of

Start = Callable[..., Server]
LUA = files("outlast_redis") / "lua"
ATTEMPTS = re.findall(r"\{'([A-Z]+)'", (LUA / "setup.lua").read_text("utf-8"))
TASK = Scope("task", "t")
NOT_IN_SCRIPTS = {"ASKING", "EVAL", "EVALSHA", "EXISTS", "LRANGE", "ZRANGEBYLEX"}
MISSED: Any = {"INFO": "tells more, if allowed", "CONFIG": "the same", "CLUSTER": "asked before"}
README = "~outlast:* +@read +@write +eval +evalsha +time +asking +cluster|slots"
BIG = [Entry(f"m{number}", bytes(700_000)) for number in range(3)]
"""More than goes into one script."""


class Users:
    """Makes users of a server, whose password is hunter2; on a cluster, on all its nodes."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self.client = client_of(server)

    async def __call__(self, *rules: str) -> str:
        """The URL of a user that has these rules and no others."""
        await self.add("reset", "on", ">hunter2", *rules)
        return self._url.replace("://", "://app:hunter2@")

    async def add(self, *rules: str) -> None:
        command = ("ACL SETUSER", "app", *rules)
        if isinstance(self.client, RedisCluster):
            options: Any = {"target_nodes": RedisCluster.ALL_NODES}
            await self.client.execute_command(*command, **options)
        else:
            await self.client.execute_command(*command)

    async def held(self, namespace: str) -> list[tuple[str, bytes]]:
        """What is stored in a namespace."""
        assert isinstance(self.client, Redis)
        return sorted([found async for found in keys_of(self.client, namespace)])


@pytest.fixture
async def users(start: Start, request: pytest.FixtureRequest) -> AsyncIterator[Users]:
    made = Users(start(getattr(request, "param", "redis")))
    yield made
    await made.client.aclose()


async def refusal(open_driver: Open, url: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        await open_driver(url, **options)
    assert caught.value.applied is False
    assert "hunter2" not in str(caught.value)
    assert "app:***@" in str(caught.value)
    return str(caught.value)


def granted(message: str) -> list[str]:
    """The rules that a message advises to add."""
    return message.partition("ACL SETUSER <user> ")[2].split()


def test_all_commands_are_attempted_on_opening() -> None:
    """What scripts and driver send is what the opening tries, no more and no less."""
    used: set[str] = set()
    for script in LUA.iterdir():
        text = script.read_text("utf-8")
        assert len(re.findall(r"redis\.p?call\b", text)) == len(
            re.findall(r"redis\.p?call\((?:'[A-Z]+'|unpack\(command\))", text)
        ), script.name
        used |= commands_of(text)
    for module in Path(outlast_redis.__file__).parent.glob("*.py"):
        if module.name == "_errors.py":  # It has the servers' words.
            continue
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                word = node.elts[0].value
                if isinstance(word, str) and word.isupper():
                    used.add(word)
    assert used - set(MISSED) == set(ATTEMPTS)


@pytest.mark.parametrize("users", ["redis", "valkey", "redis-cluster"], indirect=True)
async def test_a_user_without_any_one_command_is_refused(users: Users, open_driver: Open) -> None:
    """It is named with the rule to add, nothing is stored, and with the rule it opens."""
    admin = await users("~*", "+@all")
    for name in sorted(set(ATTEMPTS)):
        if name == "ASKING" and isinstance(users.client, Redis):
            continue
        namespace = f"without-{name}"
        rule = f"+{name.lower()}"
        url = await users("~outlast:*", "+@all", "-info", "-config", f"-{name}")
        for create in (True, False):
            message = await refusal(open_driver, url, create=create, namespace=namespace)
            assert rule in granted(message) or (not create and "outlast setup" in message)
        if isinstance(users.client, Redis):
            assert await users.held(namespace) == []
        await users.add("+@all")
        await open_driver(admin, namespace=namespace)
        await users.add(f"-{name}")
        message = await refusal(open_driver, url, create=False, namespace=namespace)
        assert rule in granted(message)
        await users.add(*granted(message))
        await open_driver(url, namespace=namespace)


@pytest.mark.parametrize("users", ["redis", "redis-cluster"], indirect=True)
async def test_a_user_without_the_keys_is_refused(users: Users, open_driver: Open) -> None:
    """Also one who may touch only the key that is asked for first."""
    for rules in (
        ["~theirs:*", "+@all"],
        ["~outlast:{n}:*", "+@all"],
        ["~outlast:{n}:*", "+@all", "-time", "-unlink"],
        ["~outlast:{n}:*", "%R~outlast:*", "+@all"],
    ):
        url = await users(*rules)
        message = await refusal(open_driver, url, namespace="n")
        assert {"~outlast:{n}:*", "~outlast:{n.*"} <= set(granted(message))
        assert ("TIME" in message) == ("-time" in rules)
        await users.add(*granted(message))
        driver = await open_driver(url, namespace="n")
        await driver.claim(TASK, claim_id(1))


@pytest.mark.parametrize("users", ["redis", "valkey", "redis-cluster"], indirect=True)
async def test_the_rules_of_the_readme_are_enough(users: Users) -> None:
    """For everything that a backend does."""
    page = Path(__file__).parents[1] / "README.md"
    rules = README.partition(" +asking")[0]
    assert f"    {rules}\n" in page.read_text("utf-8")
    if isinstance(users.client, RedisCluster):
        rules = README
    async with outlast.open_backend(await users(*rules.split()), namespace="n") as backend:
        await _use(backend._driver)  # type: ignore[attr-defined]


async def test_who_may_only_read_can_look(users: Users, open_driver: Open) -> None:
    """With setup=False; each mutation is refused whole."""
    driver = await open_driver(await users("~*", "+@all"), namespace="n")
    await driver.write(TASK, "state", b"held", fence=None)
    await driver.claim(Scope("task", "empty"), claim_id(3))
    url = await users("~*", "+@read", "+eval", "+evalsha", "+time")
    await refusal(open_driver, url, namespace="n")
    reader = await open_driver(url, namespace="n", create=False)
    assert (await reader.read(TASK, "state")).data == b"held"
    before = await users.held("n")
    for call in _mutations(reader, None).values():
        with pytest.raises(ConfigurationError, match="may not") as caught:
            await call()
        assert caught.value.applied is False
    assert await users.held("n") == before


@pytest.mark.parametrize("name", sorted(set(ATTEMPTS) - NOT_IN_SCRIPTS))
async def test_a_permission_taken_away_later_stops_a_script_before_it_writes(
    users: Users, open_driver: Open, name: str
) -> None:
    """H-R4: a mutation is done, or certainly nothing of it."""
    driver = await open_driver(await users("~*", "+@all"), namespace="n")
    await driver.claim(Scope("task", "empty"), claim_id(3))
    await driver.claim(TASK, claim_id(1))
    await users.add(f"-{name}")
    refused: list[ConfigurationError] = []
    for seq, key in enumerate(_mutations(driver, None)):
        before = await users.held("n")
        try:
            await _mutations(driver, Fence(1, claim_id(1), seq + 1, "0" * 16))[key]()
        except ConfigurationError as error:
            refused.append(error)
            # What was put aside belongs to nobody, and is swept.
            assert _unstaged(await users.held("n")) == _unstaged(before), key
    assert {error.applied for error in refused} == {False}
    assert all(f"no permission to run {name}" in str(error) for error in refused)


def _unstaged(held: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [one for one in held if ":staged" not in one[0]]


@pytest.mark.parametrize("name", ["TIME", "UNLINK"])
async def test_a_command_that_the_server_lacks_is_named(
    start: Start, open_driver: Open, name: str
) -> None:
    """Providers rename or switch off some."""
    server = start("redis", "--rename-command", name, "")
    with pytest.raises(ConfigurationError, match=f"does not know {name},"):
        await open_driver(server.url)


async def test_opening_takes_one_script(shared: Server, namespace: str, open_driver: Open) -> None:
    """Permissions and mark in one round trip."""
    await open_driver(shared.url, namespace=namespace)
    async with Proxy(shared.addresses[0]) as proxy:
        await open_driver(proxy.url, namespace=namespace)
        assert proxy.requests == 1


class OldScript(Script):
    """As Redis before 7 understands it: it cannot ask about rules."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self._text = self._text.replace("redis.acl_check_cmd", "nil")

    def by_hash(self, keys: Any, arguments: Any) -> Any:
        return self.by_text(keys, arguments)


async def test_before_redis_7_commands_are_tried_without_effect(
    users: Users, open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is run such that it changes nothing, whether the namespace is new or not."""
    monkeypatch.setattr(_scripts, "SETUP", OldScript("setup"))
    for name in sorted(set(ATTEMPTS) - {"ASKING", "EVAL", "EVALSHA"}):
        namespace = f"without-{name}"
        url = await users("~outlast:*", "+@all", f"-{name}")
        message = await refusal(open_driver, url, namespace=namespace)
        assert f"+{name.lower()}" in granted(message)
        assert [key for key, _ in await users.held(namespace)] == (
            [] if name != "UNLINK" else [f"outlast:{{{namespace}}}:format"]
        )
        await users.add("+@all")
        await open_driver(url, namespace=namespace)
        before = await users.held(namespace)
        await users.add(f"-{name}")
        message = await refusal(open_driver, url, namespace=namespace, create=False)
        assert f"+{name.lower()}" in granted(message)
        await users.add("+@all")
        await open_driver(url, namespace=namespace, create=False)
        assert await users.held(namespace) == before


def _mutations(driver: RedisDriver, fence: Fence | None) -> dict[str, Callable[[], Any]]:
    return {
        "write": lambda: driver.write(TASK, "state", b"x", fence=fence, index=Index("p", "s", 1)),
        "move": lambda: driver.write(TASK, "state", b"x", fence=fence, index=Index("q", "s", 1)),
        "append": lambda: driver.append(TASK, "api", [Entry("new", b"new")], fence=fence),
        "append two": lambda: driver.append(
            TASK, "api", [Entry("a", b"a"), Entry("b", b"b")], fence=fence
        ),
        "replace": lambda: driver.replace(TASK, "api", [Entry("n", b"n")], fence=fence),
        "replace in pieces": lambda: driver.replace(TASK, "api", BIG, fence=fence),
        "clear": lambda: driver.replace(TASK, "api", [], fence=fence),
        "empty": lambda: driver.write(TASK, "state", None, fence=fence),
        "remove": lambda: driver.remove(TASK, fence=fence),
        "claim": lambda: driver.claim(Scope("task", "another"), claim_id(2), parent="q"),
        "sweep": lambda: driver.sweep(older_than=0, limit=9, dry_run=False, after=None),
    }


async def _use(driver: RedisDriver) -> None:
    await driver.claim(TASK, claim_id(1))
    for seq, key in enumerate(_mutations(driver, None)):
        await _mutations(driver, Fence(1, claim_id(1), seq + 1, "0" * 16))[key]()
    page = await driver.sweep(older_than=0, limit=9, dry_run=False, after=None)
    assert page.next is None
