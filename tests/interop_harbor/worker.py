"""A program that uses the models of trajectories of the real Harbor, for tests that run without it.

Runs in the environment ``.interop-harbor``.  Each line of stdin is a request, each line of stdout
its answer, both JSON.

``write`` answers the trajectories of a file, one a line, as Harbor validates and writes them.
``make`` answers a trajectory that Harbor's classes have made, with a subagent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harbor.models.trajectories import (
    Agent,
    ContentPart,
    FinalMetrics,
    ImageSource,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    SubagentTrajectoryRef,
    ToolCall,
    Trajectory,
)

TIME = "2026-11-20T10:00:01Z"


def write(request: dict[str, Any]) -> list[dict[str, Any]]:
    with Path(request["path"]).open() as lines:
        return [Trajectory.model_validate_json(line).to_json_dict() for line in lines]


def make(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    image = ImageSource(media_type="image/png", path="images/1.png")
    parts = [
        ContentPart(type="text", text="When does my train leave?"),
        ContentPart(type="image", source=image),
    ]
    call = ToolCall(tool_call_id="c1", function_name="find", arguments={"day": 5})
    ref = SubagentTrajectoryRef(trajectory_id="helper", session_id="kyoto")
    results = [
        ObservationResult(source_call_id="c1", content="09:00"),
        ObservationResult(content="Asked a helper.", subagent_trajectory_ref=[ref]),
    ]
    agent = Agent(name="terminus", version="2.0", model_name="m1")
    helped = Step(step_id=1, source="agent", message="At nine.", is_copied_context=True)
    helper = Trajectory(session_id="kyoto", trajectory_id="helper", agent=agent, steps=[helped])
    steps = [
        Step(step_id=1, timestamp=TIME, source="user", message=parts),
        Step(
            step_id=2,
            timestamp=TIME,
            source="agent",
            message="",
            reasoning_content="Look it up.",
            reasoning_effort="high",
            tool_calls=[call],
            observation=Observation(results=results),
            metrics=Metrics(prompt_tokens=20, completion_tokens=5),
            llm_call_count=1,
        ),
        Step(step_id=3, source="agent", message="At nine.", extra={"checked": True}),
    ]
    whole = Trajectory(
        session_id="kyoto",
        trajectory_id="main",
        agent=agent,
        steps=steps,
        notes="A question about trains.",
        final_metrics=FinalMetrics(total_steps=3),
        subagent_trajectories=[helper],
    )
    return whole.to_json_dict()


DO = {"write": write, "make": make}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            said = {"answer": DO[request["do"]](request)}
        except ValueError as error:  # what a model of Harbor refuses
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
