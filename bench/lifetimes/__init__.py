"""Trainings on machines that are lost: traces of lives, policies of saving, scores."""
