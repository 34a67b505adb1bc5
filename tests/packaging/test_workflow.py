"""Files that run elsewhere: the workflow of GitHub, the Job of Kubernetes, and the image."""

from __future__ import annotations

import re
import shlex
import tomllib

import yaml
from typer.main import get_command

from memctl.cli import app
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


def test_kubernetes_job_has_valid_arguments() -> None:
    text = (ROOT / "examples" / "kubernetes-job.yaml").read_text("utf-8")
    claim, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    root = get_command(app)
    name, *arguments = container["args"]
    command = root.commands[name]
    assert command.make_context(name, arguments).params["source"].startswith("postgresql://")
    mounted = {volume["name"] for volume in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    [state] = [one for one in pod["volumes"] if one["name"] == "state"]
    assert state["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"]


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
