"""Regret of the choice in half precision, as `bench_choice_regret` measures it."""

from bench_choice_regret import suite

bench_choice_regret_half = suite(is_half=True)
