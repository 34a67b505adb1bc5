"""A program that runs graphs of LangGraph, for tests that prune their threads.

Runs in the environment ``.interop-langgraph``.  Each line of stdin is a request, each line of
stdout its answer, both JSON: ``{"do": ..., "url": ..., ...}``, answered by ``{"answer": ...}`` or
``{"error": "..."}``.

``make`` runs each graph in a thread of its own.  ``states`` answers the state of each thread,
``history`` all its states, and ``go`` the states after further turns.  ``talk`` adds turns to the
thread ``talk`` until there is a file ``until``, and answers their number and the state.  ``summed``
runs a graph that keeps a summary, and answers its state.  The graphs are deterministic.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt


class Numbers(TypedDict):
    numbers: Annotated[list[int], add]


def joined(state: list[int], writes: list[list[int]]) -> list[int]:
    return [*state, *(number for some in writes for number in some)]


class Few(TypedDict):
    numbers: Annotated[list[int], DeltaChannel(joined, snapshot_frequency=3)]


class Rare(TypedDict):
    numbers: Annotated[list[int], DeltaChannel(joined)]
    plain: int


def agent(state: MessagesState) -> dict[str, Any]:
    last, at = state["messages"][-1], len(state["messages"])
    if isinstance(last, HumanMessage):
        call = {"name": "sum", "args": {"of": last.content}, "id": f"call{at}"}
        return {"messages": [AIMessage("", tool_calls=[call], id=f"m{at}")]}
    return {"messages": [AIMessage(f"{last.content} is the sum", id=f"m{at}")]}


def tools(state: MessagesState) -> dict[str, Any]:
    at, call = len(state["messages"]), state["messages"][-1].tool_calls[0]
    found = str(len(call["args"]["of"]))
    return {"messages": [ToolMessage(found, tool_call_id=call["id"], id=f"m{at}")]}


def asked(state: MessagesState) -> dict[str, Any]:
    at, call = len(state["messages"]), state["messages"][-1].tool_calls[0]
    found = str(interrupt({"call": call["name"]}))
    return {"messages": [ToolMessage(found, tool_call_id=call["id"], id=f"m{at}")]}


def chat(run: Any = tools) -> StateGraph:
    graph = StateGraph(MessagesState)
    graph.add_node(agent)
    graph.add_node("tools", run)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges(
        "agent",
        lambda state: "tools" if getattr(state["messages"][-1], "tool_calls", None) else END,
    )
    graph.add_edge("tools", "agent")
    return graph


def one(state: Any) -> dict[str, Any]:
    return {"numbers": [len(state["numbers"])]}


def ask(state: Any) -> dict[str, Any]:
    return {"numbers": [interrupt({"count": len(state["numbers"])})]}


def line(kind: Any, *nodes: Any) -> StateGraph:
    graph = StateGraph(kind)
    for at, node in enumerate(nodes):
        graph.add_node(f"n{at}", node)
        graph.add_edge(f"n{at - 1}" if at else START, f"n{at}")
    return graph


def sends() -> StateGraph:
    graph = StateGraph(Numbers)
    graph.add_node("one", one)
    graph.add_node("ask", ask)
    both = [Send("one", {"numbers": [1]}), Send("ask", {"numbers": [2, 3]})]
    graph.add_conditional_edges(START, lambda _: both)
    return graph


def nested(lasting: bool, *nodes: Any) -> StateGraph:
    child = line(Numbers, *nodes).compile(checkpointer=True if lasting else None)
    return line(Numbers, one, child, one)


def deep() -> StateGraph:
    inner = line(Numbers, one, ask).compile()
    return line(Numbers, one, line(Numbers, one, inner).compile(), one)


GRAPHS = {
    "chat": chat(),
    "forked": chat(),
    "chat-asks": chat(asked),
    "plain": line(Numbers, one, one, one),
    "asks": line(Numbers, one, ask, one),
    "sends": sends(),
    "calls": nested(False, one, one),
    "call-asks": nested(False, one, ask),
    "lasting": nested(True, one, one),
    "lasting-asks": nested(True, one, ask),
    "deep-asks": deep(),
    "delta": line(Few, one, one),
    "delta-asks": line(Few, one, ask),
    "delta-rare": line(Rare, one, one),
    "delta-forked": line(Few, one, one),
}


@contextmanager
def saver(url: str) -> Iterator[Any]:
    kind = PostgresSaver if url.startswith("postgresql") else SqliteSaver
    with kind.from_conn_string(url) as found:
        found.setup()
        yield found


def given(name: str, turn: int) -> Any:
    if name in ("chat", "forked", "chat-asks"):
        return {"messages": [HumanMessage("x" * turn, id=f"h{turn}")]}
    return {"numbers": [100 + turn]}


def of_thread(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def plain(values: Any) -> Any:
    return json.loads(json.dumps(values, default=lambda value: value.model_dump()))


def make(checkpointer: Any) -> None:
    for name, built in GRAPHS.items():
        graph, config = built.compile(checkpointer=checkpointer), of_thread(name)
        for turn in range(4):
            graph.invoke(given(name, turn), config)
            if turn < 3 and graph.get_state(config).next:
                graph.invoke(Command(resume=turn), config)
        if "forked" in name:
            old = list(graph.get_state_history(config))[5]
            new = given(name, 9)
            graph.update_state(old.config, new)
            graph.invoke(given(name, 10), config)


def state(graph: Any, thread: str) -> Any:
    config = of_thread(thread)
    found = graph.get_state(config, subgraphs=True)
    return {
        "values": plain(found.values),
        "next": found.next,
        "id": found.config["configurable"]["checkpoint_id"],
        "tasks": repr(found.tasks),
        "metadata": found.metadata,
    }


def history(built: StateGraph, thread: str, checkpointer: Any) -> list[Any]:
    graph = built.compile(checkpointer=checkpointer)
    return [
        [plain(one.values), one.next, one.config["configurable"], one.metadata]
        for one in graph.get_state_history(of_thread(thread))
    ]


def go(checkpointer: Any) -> dict[str, Any]:
    found = {}
    for name, built in GRAPHS.items():
        graph, config = built.compile(checkpointer=checkpointer), of_thread(name)
        steps = []
        for turn in range(20, 24):
            waits = graph.get_state(config).next
            graph.invoke(Command(resume=turn) if waits else given(name, turn), config)
            now = graph.get_state(config)
            steps.append([plain(now.values), now.next])
        found[name] = steps
    return found


def states(checkpointer: Any) -> dict[str, Any]:
    return {
        name: state(built.compile(checkpointer=checkpointer), name)
        for name, built in GRAPHS.items()
    }


def histories(checkpointer: Any) -> dict[str, Any]:
    return {name: history(built, name, checkpointer) for name, built in GRAPHS.items()}


def talk(checkpointer: Any, until: str) -> dict[str, Any]:
    graph = GRAPHS["chat"].compile(checkpointer=checkpointer)
    turns = 0
    while not Path(until).exists():
        graph.invoke(given("chat", turns), of_thread("talk"))
        turns += 1
    return {"turns": turns, "state": state(graph, "talk")}


class Summed(MessagesState):
    summary: str


def sum_up(state: Summed) -> dict[str, Any]:
    """Remove the first messages, as a summary stands for them."""
    removed = [RemoveMessage(id=one.id) for one in state["messages"][:-1]]
    return {"summary": "They spoke of seats.", "messages": removed}


def summed(checkpointer: Any) -> Any:
    graph = line(Summed, sum_up).compile(checkpointer=checkpointer)
    for text in ("My seat is 12A.", "Which seat?"):
        graph.invoke({"messages": [HumanMessage(text, id=text)]}, of_thread("summed"))
    return state(graph, "summed")["values"]


WORK = {
    "summed": summed,
    "make": make,
    "states": states,
    "history": histories,
    "go": go,
    "talk": talk,
}


def answer(request: dict[str, Any]) -> Any:
    """Return the answer to a request."""
    work = WORK[request.pop("do")]
    with saver(request.pop("url")) as checkpointer:
        return work(checkpointer, **request)


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        try:
            reply = {"answer": answer(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - the test that asked is to fail
            reply = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
