"""GPUs: which are installed, their facts, and the arithmetic of occupancy and roofline."""
