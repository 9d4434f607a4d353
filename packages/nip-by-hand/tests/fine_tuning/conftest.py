"""The misbehaving fine-tuning API of `job_server`, and its time."""

from wire_fixtures import fake_time as fake_time
from wire_fixtures import wire as wire
