"""Everything that touches ms-swift outside the trainers: arguments, hooks, the contract with its signatures."""
