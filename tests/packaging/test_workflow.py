"""Files that run elsewhere: the workflow of GitHub, Jobs of Kubernetes and Ray, and the image."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

import yaml
from typer.main import get_command

from memctl.cli import app
from memctl.errors import Busy, Unavailable, exit_codes
from memctl.shard import Shard
from tests.packaging.bounds import ROOT


def test_workflow_tests_each_python_of_the_classifiers() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [
        found[1]
        for text in project["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (\d+\.\d+)", text))
    ]
    jobs = workflow["jobs"]
    for job in jobs.values():
        assert [one["python"] for one in job["strategy"]["matrix"]["include"]] == named
    checks = [one["what"].split() for one in jobs["test"]["strategy"]["matrix"]["include"]]
    assert all(targets[:2] == ["test", "trust"] for targets in checks)
    assert [targets[2:] for targets in checks if targets[2:]] == [["interop"]]
    for job in jobs.values():
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@v\d+", step.get("uses", "a@v1"))


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the values that memctl has of a command line."""
    name, *arguments = words
    command: Any = get_command(app)
    found: dict[str, Any] = command.commands[name].make_context(name, arguments).params
    return found


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "examples" / name).read_text("utf-8")))


def is_mounted(pod: dict[str, Any]) -> bool:
    """Return whether the container of a pod mounts what the pod has, and nothing else."""
    [container] = pod["containers"]
    mounted = {volume["name"] for volume in container["volumeMounts"]}
    return mounted == {volume["name"] for volume in pod["volumes"]}


def claimed(pod: dict[str, Any]) -> str:
    """Return the name of the claim for the state folder."""
    [state] = [one for one in pod["volumes"] if one["name"] == "state"]
    name: str = state["persistentVolumeClaim"]["claimName"]
    return name


def test_kubernetes_job_has_valid_arguments() -> None:
    claim, job = manifests("kubernetes-job.yaml")
    pod = job["spec"]["template"]["spec"]
    assert parsed(pod["containers"][0]["args"])["source"].startswith("postgresql://")
    assert is_mounted(pod)
    assert claimed(pod) == claim["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"]


def test_kubernetes_indexed_job_runs_each_shard() -> None:
    claim, job = manifests("kubernetes-indexed-job.yaml")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    for index in (0, spec["completions"] - 1):
        words = [one.replace("$(JOB_COMPLETION_INDEX)", str(index)) for one in container["args"]]
        shard = Shard.parse(parsed(words)["shard"])
        assert shard == Shard(index, spec["completions"])
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    assert is_mounted(pod)
    assert claimed(pod) == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_kubernetes_indexed_job_repeats_what_another_try_may_help() -> None:
    _, job = manifests("kubernetes-indexed-job.yaml")
    _, rule = job["spec"]["podFailurePolicy"]["rules"]
    again = {Unavailable.exit_code, Busy.exit_code}
    final = [code for code, _, _ in exit_codes() if 0 < code < 128 and code not in again]
    assert rule["onExitCodes"]["values"] == sorted(set(final))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert rule["onExitCodes"]["containerName"] == container["name"]


def test_rayjob_has_valid_arguments() -> None:
    [job] = manifests("rayjob.yaml")
    program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "memctl"
    found = parsed(words)
    assert found["on"] == "ray"
    cluster = job["spec"]["rayClusterSpec"]
    head, [workers] = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    processors = workers["replicas"] * int(workers["rayStartParams"]["num-cpus"])
    assert found["shards"] == processors  # all parts at the same time
    claim, _ = manifests("kubernetes-indexed-job.yaml")
    for group in (head, workers):
        pod = group["template"]["spec"]
        assert is_mounted(pod)
        assert claimed(pod) == claim["metadata"]["name"]


def test_image_copies_the_sources_of_the_wheel() -> None:
    image = (ROOT / "Dockerfile").read_text("utf-8")
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", image, re.MULTILINE)
        for word in shlex.split(line)[:-1]
    }
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    shared = built["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert {"memctl", "pyproject.toml", "README.md", "LICENSE"} <= copied
    assert {path.partition("/")[0] for path in shared} <= copied
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").split() if line[0] == "!"
    }
    assert kept == copied
    assert "USER 10001:10001" in image
