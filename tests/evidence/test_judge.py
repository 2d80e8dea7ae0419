"""Who holds the others up: from places of ranks in their groups."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trainer_exporter.evidence.judge import Group, Place, culprits

GROUPS = {
    "nothing": ([], set()),
    "a_group_of_one": ([Group("0", {0: Place(5, 4)})], set()),
    "all_wait_in_the_same_collective": ([Group("0", {rank: Place(12, 11) for rank in range(4)})], set()),
    "one_has_not_entered": ([Group("0", {0: Place(12, 11), 1: Place(12, 11), 2: Place(12, 11), 3: Place(11, 11)})], {3}),
    "one_of_two_has_not_entered": ([Group("0", {0: Place(12, 11), 1: Place(11, 11)})], {1}),
    "one_has_not_completed_what_the_others_have": ([Group("0", {0: Place(12, 11), 1: Place(12, 11), 2: Place(12, 10)})], {2}),
    "one_alone_has_entered": ([Group("0", {0: Place(12, 11), 1: Place(11, 11), 2: Place(11, 11), 3: Place(11, 11)})], set()),
    "completion_is_not_known": ([Group("0", {0: Place(12), 1: Place(12), 2: Place(11)})], {2}),
    "a_victim_waits_in_another_group": (
        [
            Group("all", {0: Place(12, 11), 1: Place(12, 11), 2: Place(11, 11), 3: Place(11, 11)}),
            Group("pair", {2: Place(12, 11), 3: Place(11, 11)}),
        ],
        {3},
    ),
    "a_victim_waits_where_completion_is_not_known": (
        [Group("all", {0: Place(12), 1: Place(12), 2: Place(11), 3: Place(11)}), Group("pair", {2: Place(12), 3: Place(11)})],
        {3},
    ),
    "all_wait_for_another_and_one_of_them_is_late_twice": (
        [
            Group("a", {0: Place(5, 4), 1: Place(4, 4), 2: Place(5, 4), 3: Place(5, 4)}),
            Group("b", {0: Place(7, 7), 1: Place(8, 7), 2: Place(8, 7), 3: Place(8, 7)}),
            Group("c", {0: Place(2, 2), 1: Place(3, 2), 2: Place(2, 2), 3: Place(3, 2)}),
        ],
        {0},
    ),
}


@pytest.mark.parametrize(("groups", "expected"), GROUPS.values(), ids=GROUPS)
def test_the_culprit_is_behind_and_waits_nowhere_itself(groups: Sequence[Group], expected: set[int]) -> None:
    assert culprits(groups) == expected
