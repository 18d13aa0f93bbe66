"""What tests and benchmarks share: cases, inputs, references and the acceptance rule."""
