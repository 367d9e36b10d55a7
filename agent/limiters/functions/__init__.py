"""Functions that the user declares: limiters of their own programs in Go, C, C++ and Rust."""
