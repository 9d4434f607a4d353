"""Documents that an attack leaves: tables, judge.json, a gallery, and the screen."""
