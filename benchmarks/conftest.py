"""Hooks that make pytest-benchmark's JSON fit to be committed."""

import gc
from typing import Any

import provenance


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that the collection before each case skips them."""
    gc.freeze()


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    named = provenance.machine_info(machine_info)
    machine_info.clear()
    machine_info.update(named)


def pytest_benchmark_generate_commit_info() -> dict[str, Any]:
    return provenance.commit_info()


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Keep the statistics, not every sample, and parameters as their ids."""
    for result in output_json["benchmarks"]:
        del result["stats"]["data"]
        result["params"] = {name: str(value) for name, value in (result["params"] or {}).items()}
