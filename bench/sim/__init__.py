"""A fleet on a virtual clock: the product's own router and scheduler, and a model of step times."""
