"""The `topics` command. Commands compute and `output` prints; nothing here knows more than the parts it stands on."""
