"""What a GPU is: which there are, their facts, and what follows from these."""
