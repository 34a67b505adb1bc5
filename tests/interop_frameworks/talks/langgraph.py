"""A graph of LangGraph with ``SqliteSaver``; the model class records what it is given."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from talks.chat_model import PICTURE, Recorded


@tool
def weather(city: str) -> str:
    """Look at the weather."""
    return f"sunny in {city}"


def graph(model: Recorded) -> StateGraph:
    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    found = StateGraph(MessagesState)
    found.add_node(agent)
    found.add_node("tools", ToolNode([weather]))
    found.add_edge(START, "agent")
    found.add_conditional_edges("agent", tools_condition)
    found.add_edge("tools", "agent")
    return found


def say(agent: Any, config: Any, content: Any) -> None:
    agent.invoke({"messages": [HumanMessage(content)]}, config)


async def write(path: str, session: str, _: str) -> None:
    config = {"configurable": {"thread_id": session}}
    with SqliteSaver.from_conn_string(path) as saver:
        agent = graph(Recorded()).compile(saver)
        say(agent, config, "Hello 会话 😀")
        before = agent.get_state(config).config
        say(agent, config, "weather in Kyoto?")
        say(agent, config, [{"type": "text", "text": "Look:"}, PICTURE])
        match session:
            case "forked":
                say(agent, before, "Or Osaka?")
            case "removed":
                first = agent.get_state(config).values["messages"][:2]
                agent.update_state(config, {"messages": [RemoveMessage(one.id) for one in first]})
            case "stopped":
                asking = graph(Recorded()).compile(saver, interrupt_before=["tools"])
                say(asking, config, "weather in Osaka?")


async def ask(path: str, session: str, _: str) -> Any:
    recorded = Recorded()
    with SqliteSaver.from_conn_string(path) as saver:
        agent = graph(recorded).compile(saver)
        say(agent, {"configurable": {"thread_id": session}}, "And now?")
    return recorded.last
