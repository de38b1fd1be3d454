"""The development loop: code on a running VM follows a folder here."""
