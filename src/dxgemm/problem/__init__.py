"""Problems: layouts of operands, the problem that they define, and every check before a launch."""
