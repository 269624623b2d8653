"""From a model's files to a paged forward pass: find, convert, load, run."""
