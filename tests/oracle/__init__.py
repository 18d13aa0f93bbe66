"""Tools of tests and benchmarks: cases, inputs, references and the acceptance rule."""
