"""The contract every registered implementation is held to: right, or a refusal it is allowed."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from oracle import abilities
from oracle.cases import Group
from oracle.check import Refusal, check
from oracle.kinds import KINDS
from oracle.layouts import LAYOUTS
from oracle.libraries import NumpyLibrary

import dxgemm
from dxgemm import errors
from dxgemm.choice.implementation import Pipelined, Role
from dxgemm.choice.legality import fitting_configs
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime.device import device_facts

CASES_PROPERTY = "contract_cases"
STEP = 11  # shares no factor with the five or six sizes along an axis: every size is met


def inability(implementation: Any, kind: str) -> str | None:
    """Says why an implementation does not compute a kind on this device; or None."""
    return abilities.inability(implementation, kind, device_facts(0).arch)


def misfit(implementation: Any, config: Any, kind: str) -> str | None:
    """Says why this device cannot launch a config of an implementation; or None."""
    device = device_facts(0)
    fits = config in fitting_configs(implementation, KINDS[kind].dtype, device)
    return None if fits else f"{config} does not fit {device.name}"


def may_refuse(implementation: Any, refusal: Refusal) -> bool:
    """True if an implementation that computes a kind may decline one case of it.

    A baseline may decline anything. dxgemm's own implementations compute every case, except those
    on tensor cores or over TMA: these may require 16-byte aligned rows or columns of a and b, for
    TF32 that a or b is K-major, and on Hopper for int8 that both are. A pipeline may decline any
    case of TF32 and int8, since other pipelines and implementations compute the layouts that it
    does not.
    """
    if isinstance(implementation, Pipelined) and refusal.case.kind in ("tf32", "int8"):
        return True
    case = refusal.case
    if not implementation.is_own:
        return True
    is_reduced = KINDS[case.kind].is_reduced
    a_order, b_order, _ = (LAYOUTS[name].order for name in case.layouts)
    a_is_across, b_is_across = a_order == "col", b_order == "row"
    lies_across_k = case.precision == "tf32" and a_is_across and b_is_across
    if case.kind == "int8" and implementation.kernel.only_arch == 90:
        lies_across_k = a_is_across or b_is_across
    insists = is_reduced or insists_on_alignment(implementation)
    return (insists and not refusal.was_aligned) or (is_reduced and lies_across_k)


def insists_on_alignment(implementation: Any) -> bool:
    """True if rows or columns of a and b must lie at multiples of 16 bytes, as TMA reads them."""
    return bool(implementation.kernel.tensor_map_names)


class Contract:
    """Checks groups of cases on one implementation, and refusals against its right to refuse."""

    def __init__(self, implementation: Any, library: NumpyLibrary, record: Callable) -> None:
        self.implementation = implementation
        self.library = library
        self._record = record
        self._first = (implementation.rung or 0) % STEP

    def __call__(
        self,
        groups: Iterable[Group],
        *,
        limit: float = 1.0,
        config: Any = None,
        slices: int = 1,
        thin: bool = False,
    ) -> None:
        """Asserts that all cases are right.

        Args:
            groups: cases, all of one kind, in groups that share a product.
            limit: 1 for the acceptance rule, 0 for data whose sums are exact.
            config: a config of the implementation to force.
            slices: number of split-K slices to force with the config.
            thin: True if the simulator may run one case of each group instead of all; and only some
                of the groups, for steps of the ladder that are used only when named.
        """
        name = self.implementation.name
        chosen = name if config is None else (name, config, slices)

        def gemm(a: Any, b: Any, c: Any, alpha: float, beta: float, **options: Any) -> Any:
            return dxgemm.gemm(a, b, c, alpha, beta, implementation=chosen, **options)

        ran, refused = 0, []
        for index, group in enumerate(groups):
            if index == 0 and self.implementation.is_own:
                reason = inability(self.implementation, group[0].kind)
                if reason is None and config is not None:
                    reason = misfit(self.implementation, config, group[0].kind)
                if reason is not None:
                    pytest.skip(reason)
            if thin and simulator_enabled():
                is_step = self.implementation.role is Role.RUNG
                if is_step and index % STEP != self._first:
                    continue
                group = (group[(7 * index + group[0].m) % len(group)],)
            refused += check(
                group, gemm, self.library, limit=limit, refusal=errors.UnsupportedProblemError
            )
            ran += len(group)
        for refusal in refused:
            assert may_refuse(self.implementation, refusal), f"{refusal.case}: {refusal.reason}"
        self._record(CASES_PROPERTY, (name, ran - len(refused), len(refused)))
        if len(refused) == ran:
            pytest.skip(refused[0].reason)
