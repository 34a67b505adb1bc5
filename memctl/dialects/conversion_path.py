"""The path of conversions from one dialect to another."""

from __future__ import annotations

from functools import partial

from memctl.dialects.conversion import Conversion, Joiner, Joint, Splitter
from memctl.dialects.view import Dialect
from memctl.errors import UsageError


def conversion(source: Dialect, target: Dialect, *, summaries: bool = False) -> Conversion:
    """Return the conversion from one dialect to another with the fewest steps.

    If messages of the target cannot carry notes, data that only the source can express are lost.
    ``summaries`` is True if the store of the target has a place for summaries from which all agents
    get them: then it is also for summaries that are messages of the source.

    Raises:
        UsageError: memctl cannot convert messages of the source to the target.
    """
    if source.facts is not target.facts:
        raise UsageError(
            "facts do not become a conversation, nor a conversation facts: that takes a model",
            "copy facts to a store of facts, or to an archive",
        )
    # None is needed for a copy that converts nothing.
    from memctl.dialects.agentscope_java import JAVA_VERSIONS
    from memctl.dialects.rows import RowDialect
    from memctl.dialects.runtime_versions import RUNTIME_VERSIONS
    from memctl.dialects.versions import VERSIONS

    joints: list[Joint] = [VERSIONS, RUNTIME_VERSIONS, JAVA_VERSIONS]
    zone, every = source.zone or target.zone, source.all_messages
    joints += [one.joint(zone) for one in (source, target) if isinstance(one, RowDialect)]
    ways: dict[str, Conversion] = {source.name: Conversion(())}
    while target.name not in ways:
        longer = {
            end.name: Conversion((*way.steps, step))
            for start, way in ways.items()
            for joint in joints
            for step, begin, end in (
                (
                    partial(Joiner, joint, all_messages=every, summaries=summaries),
                    *(joint.fine, joint.coarse),
                ),
                (
                    partial(Splitter, joint, notes=target.holds_notes, all_messages=every),
                    *(joint.coarse, joint.fine),
                ),
            )
            if begin.name == start and end.name not in ways
        }
        if not longer:
            raise UsageError(
                f"memctl does not convert messages of {source.name} to {target.name}",
                "copy them to a store of the same kind, such as an archive",
            )
        ways |= longer
    return ways[target.name]
