"""The parts of ARTTrainerAdapter, over OpenPipe ART."""
