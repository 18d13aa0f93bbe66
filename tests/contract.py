"""The contract every registered implementation is held to: right, or a refusal it is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import dxgemm
from dxgemm import errors
from dxgemm._gpu import simulator_enabled
from dxgemm.testing.cases import Group
from dxgemm.testing.check import check
from dxgemm.testing.libraries import NumpyLibrary

CASES_PROPERTY = "contract_cases"


class Contract:
    """Checks groups of cases on one implementation, and refusals against its right to refuse."""

    def __init__(self, implementation: Any, library: NumpyLibrary, record: Callable) -> None:
        self.implementation = implementation
        self.library = library
        self._record = record

    def __call__(
        self,
        groups: Iterable[Group],
        *,
        limit: float = 1.0,
        config: Any = None,
        thin: bool = False,
    ) -> None:
        """Asserts that all cases are right.

        Args:
            groups: cases in groups that share a product.
            limit: 1 for the acceptance rule, 0 for bit-exact data.
            config: a config of the implementation to force.
            thin: whether the simulator may run one case of each group instead of all.
        """
        name = self.implementation.name
        chosen = name if config is None else (name, config)

        def gemm(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
            return dxgemm.gemm(a, b, c, alpha, beta, implementation=chosen)

        ran, refused = 0, []
        for index, group in enumerate(groups):
            if thin and simulator_enabled():
                group = (group[(7 * index + group[0].m) % len(group)],)
            refused += check(
                group, gemm, self.library, limit=limit, refusal=errors.UnsupportedProblemError
            )
            ran += len(group)
        assert not (refused and self.implementation.is_own), refused[0]
        self._record(CASES_PROPERTY, (name, ran - len(refused), len(refused)))
        if len(refused) == ran:
            pytest.skip(refused[0])
