"""The testing kit on real servers: the same fleet, over a private local stack."""
