"""How many cases of a large product `make test` runs. `make test-full` sets HOLDFAST_TESTS=full and runs all of them.

A check leaves `make test` only by a function of this module, so none is lost: the full suite has every case.
"""

import itertools
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

FULL = os.environ.get("HOLDFAST_TESTS") == "full"
full_only = pytest.mark.full_only

T = TypeVar("T")

# Tests with many cases of the same check, which took the most CPU time of the suite: `make test` runs one case in so
# many as the number says, and each value of each axis at least once. Where the cases are different features (an
# operator, an option, a wrong call, the derivation of a charge), all of them stay.
ONE_IN = {
    "adversary/test_false_proof_attacks.py::test_word_certificates_ask_the_token_model": 2,
    "adversary/test_monitor_adversary.py::test_words": 2,
    "adversary/test_readers.py::test_hostile_data": 2,
    "adversary/test_zoo.py::test_a_hostile_function_is_never_answered_wrongly": 2,
    "adversary/test_zoo.py::test_a_hostile_module_from_onnx_is_never_answered_wrongly": 2,
    "adversary/test_zoo.py::test_an_exported_hostile_module_is_never_answered_wrongly": 2,
    "adversary/test_zoo.py::test_an_innocent_file_gets_its_proof": 2,
    "api/test_api.py::test_a_class_that_nothing_in_the_domain_changes_has_an_infinite_radius": 2,
    "api/test_api.py::test_frames_in_every_form": 2,
    "api/test_risk.py::test_no_point_of_the_ball_is_beyond_a_proved_end": 2,
    "api/test_tables.py::test_proofs_and_witnesses_over_rows_of_a_linear_model": 2,
    "bounding/test_affine_maps.py::test_every_map_of_the_zoo_is_what_its_function_says": 2,
    "bounding/test_bounder.py::test_no_point_lies_below_any_bound_nor_below_its_planes": 3,
    "bounding/test_branching.py::test_forms_hold_every_value_of_every_node": 2,
    "bounding/test_branching.py::test_what_is_left_covers_all_failures": 2,
    "bounding/test_crown.py::test_bounds_hold_in_rational_arithmetic": 2,
    "bounding/test_crown.py::test_no_point_escapes": 2,
    "bounding/test_crown.py::test_no_point_of_any_region_escapes": 2,
    "bounding/test_crown.py::test_without_matrices_the_bounds_are_the_same": 2,
    "bounding/test_crown_patches.py::test_every_value_lies_within": 2,
    "bounding/test_fixed_frames.py::test_a_batch_of_different_masks_is_bounded_like_each_row_alone": 2,
    "bounding/test_gradient.py::test_gradients_of_samples_lie_within_the_bounds": 2,
    "bounding/test_intermediate_refinement.py::test_ends_hold_every_value_and_are_narrower_than_trained_ones": 2,
    "bounding/test_layers.py::test_without_matrices_no_point_escapes_either": 2,
    "bounding/test_nonlinear_split.py::test_parts_cover_all_failures_and_no_point_is_below_its_part": 2,
    "bounding/test_quadratic_models.py::test_no_point_escapes_a_model": 3,
    "bounding/test_quadratic_models.py::test_no_point_of_any_region_escapes_a_model": 2,
    "bounding/test_reduced_forms.py::test_attacks_stay_above_the_bounds_of_long_networks": 2,
    "bounding/test_reduced_forms.py::test_balls_that_forms_see_as_boxes_are_bounded_by_backward_passes": 2,
    "bounding/test_relax.py::test_an_infinite_box_never_gives_a_wrong_finite_plane": 3,
    "bounding/test_rounding_attacks.py::test_bounds_of_convolutions_hold_in_exact_arithmetic": 2,
    "bounding/test_rounding_attacks.py::test_bounds_of_recurrent_cells_hold_with_80_digits": 3,
    "bounding/test_rounding_attacks.py::test_bounds_of_relu_networks_hold_in_exact_arithmetic": 3,
    "bounding/test_rounding_attacks.py::test_bounds_of_smooth_networks_hold_with_80_digits": 3,
    "bounding/test_taylor.py::test_nothing_lies_below_a_model_or_its_plane": 3,
    "certify/test_certify.py::test_no_certificate_of_a_trained_network_breaks": 2,
    "certify/test_certify.py::test_piecewise_linear_networks_are_certified_below_their_nearest_zero": 2,
    "certify/test_executed_arithmetic.py::test_float32_outputs_never_fall_below": 2,
    "cli/test_cli_kill.py::test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one": 2,
    "contracts/test_method.py::test_bracket_holds_the_truth_and_witnesses_are_real": 5,
    "contracts/test_method.py::test_gradient_attacks_come_close": 3,
    "contracts/test_method.py::test_pgd_ends_within_a_per_cent_on_linear_networks": 2,
    "contracts/test_method.py::test_the_same_seed_makes_the_same_claims": 2,
    "contracts/test_method_rows.py::test_an_input_is_answered_alike_whoever_shares_its_batch": 3,
    "contracts/test_property_bounds.py::test_brackets_close_around_the_truth_on_a_small_network": 3,
    "contracts/test_property_bounds.py::test_two_classes_of_a_linear_network_have_a_closed_form": 3,
    "contracts/test_region.py::test_leading_axes_and_rows_are_independent": 3,
    "contracts/test_region.py::test_linear_minimum_is_below_every_point_in_exact_arithmetic": 2,
    "contracts/test_region.py::test_tiny_radii_around_large_float32_centres": 2,
    "edits/test_edit_methods.py::test_cells_hold_the_states_of_all_edited_texts": 3,
    "edits/test_edit_methods.py::test_enumeration_is_exact_and_a_search_is_an_upper_bound": 3,
    "edits/test_edit_methods.py::test_shared_prefixes_reach_the_states_of_all_texts": 3,
    "hamming/test_hamming_bound.py::test_bounds_of_chains_hold_at_points_and_are_near_those_of_the_engine": 2,
    "hamming/test_hamming_branch.py::test_counts_of_small_images": 2,
    "hamming/test_hamming_branch.py::test_counts_of_small_networks_are_those_of_trying_everything": 2,
    "hamming/test_hamming_branch.py::test_every_level_lies_in_one_of_the_halves": 2,
    "hamming/test_hamming_sums.py::test_no_point_of_a_region_lies_below_its_bound": 3,
    "hardening/test_crown_ibp_loss.py::test_gradients_are_those_of_finite_differences": 2,
    "hardening/test_crown_ibp_loss.py::test_no_point_of_the_box_has_a_smaller_margin": 3,
    "hardening/test_training_intervals.py::test_no_point_of_the_box_leaves_the_intervals": 3,
    "lipschitz/test_metric_bounds.py::test_no_quotient_exceeds_the_metric": 2,
    "monitor/test_marble.py::test_error_never_rises_in_refinement": 2,
    "monitor/test_monitor_exact.py::test_frames_equal_brute_force": 2,
    "monitor/test_monitor_exact.py::test_tokens_equal_brute_force": 2,
    "network/test_missing_values.py::test_certificates_hold_on_both_sides_of_missing": 2,
    "network/test_recurrent.py::test_the_graph_is_that_of_all_frames": 2,
    "proofs/test_checker_functions.py::test_no_plane_crosses_its_function": 2,
    "proofs/test_checker_functions.py::test_no_point_of_a_region_is_below_its_minimum": 2,
    "proofs/test_prove.py::test_every_kind_of_network_has_certificates_that_are_accepted": 2,
    "proofs/test_quadratic.py::test_models_hold_at_every_point_that_is_found": 2,
    "report/test_answer_sentence.py::test_the_page_begins_with_the_sentence_that_other_views_get": 2,
    "report/test_every_view.py::test_a_comparison": 2,
    "report/test_every_view.py::test_every_view_of_a_run_has_the_sentence_of_its_question": 2,
    "report/test_every_view.py::test_the_page": 2,
    "report/test_report_plots.py::test_brackets": 2,
    "test_budgets.py::test_what_is_cut_off_anywhere_goes_on_to_the_same_end": 2,
}


def count(few: int, full: int) -> int:
    """How many random cases to draw."""
    return full if FULL else few


def some(cases: Iterable[T], kept: Iterable[T]) -> list[T]:
    """Those cases that are also in `kept`, in their own order; at full size all of them."""
    kept = list(kept)
    cases = list(cases)
    missing = [case for case in kept if case not in cases]
    assert not missing, f"these are no cases: {missing}"
    return [case for case in cases if FULL or case in kept]


def every(cases: Iterable[T], step: int) -> list[T]:
    """Every `step`-th case, beginning with the first; at full size all of them."""
    return list(cases)[:: 1 if FULL else step]


def combinations(*axes: Sequence[Any], together: int = 1) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis; at full size all of them.

    Args:
        together: 1: every value occurs at least once. 2: every two values of two axes occur together at least once.
    """
    every_combination = list(itertools.product(*axes))
    if FULL:
        return every_combination
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing = {part for place in places for part in _parts(place, together)}
    chosen, uses = set[int](), Counter[tuple[int, int]]()

    def merit(i: int) -> tuple[int, int, int]:
        """New parts first, then values that were used least, then the order: the choice is the same in every run."""
        new = len(missing & _parts(places[i], together))
        return new, -sum(uses[value] for value in enumerate(places[i])), -i

    while missing:
        best = max(range(len(places)), key=merit)
        chosen.add(best)
        uses.update(enumerate(places[best]))
        missing -= _parts(places[best], together)
    return [every_combination[i] for i in sorted(chosen)]


def _parts(place: tuple[int, ...], together: int) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(place), together))


def leave_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items that only the full suite runs: those marked `full_only`, and cases of the tests of `ONE_IN`."""
    if FULL:
        return []
    by_function = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        by_function[item.nodeid.partition("[")[0].removeprefix("tests/")].append(item)
    dropped = {item for item in items if item.get_closest_marker("full_only")}
    for name, step in ONE_IN.items():
        dropped.update(_cases_left_out(name, by_function.get(name, ()), step))
    return [item for item in items if item in dropped]


def _cases_left_out(name: str, items: Sequence[pytest.Item], step: int) -> list[pytest.Item]:
    """All but every `step`-th case, and but cases that show a value of an axis for the first time.

    Tests begin with different cases, so that a network that one leaves out is likely to be in another.
    """
    begin = zlib.crc32(name.encode()) % step
    kept = [i for i in range(len(items)) if i % step == begin]
    values = [_values_of(item) for item in items]
    shared = {value for value, uses in Counter(v for own in values for v in own).items() if uses > 1}
    missing = shared - {value for i in kept for value in values[i]}
    for i, own in enumerate(values):
        if missing & own:
            kept.append(i)
            missing -= own
    left = set(range(len(items))) - set(kept)
    return [items[i] for i in sorted(left)]


def _values_of(item: pytest.Item) -> set[tuple[str, int]]:
    """The value of each axis of a case; the names of one parametrize share an axis."""
    callspec = getattr(item, "callspec", None)
    return set() if callspec is None else set(callspec.indices.items())
