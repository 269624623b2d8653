"""Tests of a whole fleet, started as a user would."""
