"""From verdicts to figures: cells, arms, differences, tests, departures."""
