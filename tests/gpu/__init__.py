"""What only a GPU can show. `make test-gpu` runs it all in parallel; pytest runs the same cases one by one."""
