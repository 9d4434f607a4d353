"""The attack itself: texts are asked in order, within caps, and kept."""
