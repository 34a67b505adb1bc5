"""The store of the plugin passes the suite that memctl's own stores pass, the slow parts left out.

These are the tests of ``tests/conformance``; the places come from the ``conftest`` beside.
"""

from __future__ import annotations

from tests.conformance.test_catalogue import (
    test_messages_without_role_or_time,
    test_the_catalogue_of_hard_messages,
)
from tests.conformance.test_edit import test_hard_messages_come_back, test_marks_change
from tests.conformance.test_edit_refused import (
    test_a_memory_that_does_not_exist,
    test_what_others_added_stays,
    test_what_was_done_cannot_be_done_again,
)
from tests.conformance.test_lock import (
    test_a_second_run_is_told_who_holds_the_lock,
)
from tests.conformance.test_place import (
    test_a_missing_place_is_not_made,
    test_looking_changes_nothing,
    test_reading_may_stop_early,
    test_the_same_place_has_one_identity,
)
from tests.conformance.test_roundtrip import (
    test_an_empty_place_holds_no_memories,
    test_hard_ids_and_marks,
    test_hard_names_of_memories,
    test_memories_without_messages,
    test_repeated_ids,
    test_several_pages_come_back,
)
from tests.conformance.test_write import (
    test_adding_at_the_wrong_place_changes_nothing,
    test_adding_behind_what_is_there,
    test_an_id_that_is_there_already,
    test_failures_harm_no_other_memory,
    test_replacing,
)

__all__ = [
    "test_a_memory_that_does_not_exist",
    "test_a_missing_place_is_not_made",
    "test_a_second_run_is_told_who_holds_the_lock",
    "test_adding_at_the_wrong_place_changes_nothing",
    "test_adding_behind_what_is_there",
    "test_an_empty_place_holds_no_memories",
    "test_an_id_that_is_there_already",
    "test_failures_harm_no_other_memory",
    "test_hard_ids_and_marks",
    "test_hard_messages_come_back",
    "test_hard_names_of_memories",
    "test_looking_changes_nothing",
    "test_marks_change",
    "test_memories_without_messages",
    "test_messages_without_role_or_time",
    "test_reading_may_stop_early",
    "test_repeated_ids",
    "test_replacing",
    "test_several_pages_come_back",
    "test_the_catalogue_of_hard_messages",
    "test_the_same_place_has_one_identity",
    "test_what_others_added_stays",
    "test_what_was_done_cannot_be_done_again",
]
