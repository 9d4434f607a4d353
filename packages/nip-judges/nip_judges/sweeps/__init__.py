"""Sweeps of judges: several judges, the same attacks, a comparison that is declared beforehand."""
