"""What a run of the laboratory stands on, and how all of it is taken away again: one mechanism a file."""
