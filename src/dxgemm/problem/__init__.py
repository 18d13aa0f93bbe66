"""What is asked: layouts, the problem that they make, and every check before a launch."""
