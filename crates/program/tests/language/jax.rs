//! Placeholder until the fixture is there.
